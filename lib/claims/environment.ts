import { formatVisibleDevices, type GPU, rememberInherited } from '../gpus/index.ts';

type Name = 'CUDA_VISIBLE_DEVICES' | 'CUDA_DEVICE_ORDER';
type Variables = Record<Name, string | undefined>;

/** GPUs that one owner shows to CUDA. */
export interface Share {
  gpus: readonly GPU[];
  /** All GPUs of the machine, to count indices as CUDA does. */
  all: readonly GPU[];
  as: 'uuid' | 'index';
}

// One process has one environment, so this state is the process's.
const shares: Share[] = [];
let before: Variables | null = null;
let set: Variables | null = null;

function read(): Variables {
  return {
    CUDA_VISIBLE_DEVICES: process.env.CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER: process.env.CUDA_DEVICE_ORDER,
  };
}

function write(variables: Variables): void {
  for (const name of ['CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'] as const) {
    const value = variables[name];
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
}

/** Adds an owner's GPUs to what CUDA may see: the union of the living owners', in the order in which they came. */
export function show(share: Share): string {
  if (shares.length === 0) {
    before = read();
    rememberInherited(before);
  }
  shares.push(share);
  update(share);
  return process.env.CUDA_VISIBLE_DEVICES ?? '';
}

/** Takes them back; the last owner restores what was there at first, unless somebody else has changed it meanwhile. */
export function hide(share: Share): void {
  const at = shares.indexOf(share);
  if (at < 0) return;
  shares.splice(at, 1);
  const current = read();
  const ours =
    set !== null &&
    current.CUDA_VISIBLE_DEVICES === set.CUDA_VISIBLE_DEVICES &&
    current.CUDA_DEVICE_ORDER === set.CUDA_DEVICE_ORDER;
  if (shares.length > 0) {
    if (ours) update(shares[shares.length - 1] as Share);
    return;
  }
  if (ours && before !== null) write(before);
  before = set = null;
  rememberInherited(null);
}

function update(latest: Share): void {
  const seen = new Set<string>();
  const union = shares.flatMap(({ gpus }) => gpus).filter(({ uuid }) => !seen.has(uuid) && seen.add(uuid));
  const variables = formatVisibleDevices(union, latest.as, latest.all);
  set = {
    CUDA_VISIBLE_DEVICES: variables.CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER: variables.CUDA_DEVICE_ORDER ?? before?.CUDA_DEVICE_ORDER,
  };
  write(set);
}
