"""As gpu_lock is used."""

from __future__ import annotations

import threading

from ..claims import Claim, LateClaim, claim
from ..criteria import parameters_called, selected_words
from ..environment import form_of_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    from ..criteria import Selector


class _Lock(LateClaim):
    """A claim that can be entered again when it has ended: each time it claims the same GPUs again."""

    def __init__(self, count: int, options: Dict[str, Any]) -> None:
        super().__init__()
        self._options = options
        self._turn = threading.RLock()
        claim(count, _made=self, **options)

    @property
    def uid(self) -> Union[int, List[int]]:
        indices = [device.index for device in self._holding.devices]
        return indices[0] if len(indices) == 1 else indices

    def __enter__(self) -> "Claim":
        with self._turn:
            if not self.held:
                self.release()  # the rest of the claim
                claim(len(self), _made=self, **{**self._options, "devices": [device.uuid for device in self._holding.devices]})
            return super().__enter__()

    def __exit__(self, *_: Any) -> None:
        with self._turn:
            super().__exit__()


def lock_gpu(uid: Optional[Selector] = None, n: Optional[int] = None, n_system_gpus: Optional[int] = None, **options: Any) -> Claim:
    """
    As gpu_lock's: `with lock_gpu(uid=0):`, `with lock_gpu(n=2):` or `with lock_gpu():`; a RuntimeError if it is taken. The claim is made
    by the call, and again by each `with` after the first, which ends it. CUDA_VISIBLE_DEVICES has numbers and only what this process
    has locked, so CUDA's only GPU here is the one that is locked: "cuda:0". n_system_gpus is without effect.
    """
    selected = None if uid is None else selected_words(uid, "uid")
    count = n if n is not None else 1 if selected is None else len(selected)
    with parameters_called(count="n", devices="uid"):
        return _Lock(count, {"wait": False, "devices": selected, "visible_devices": form_of_names("index"), **options})
