import { simulatedMachine } from '../config/index.ts';
import { type GPU, label } from '../gpus/index.ts';
import { TIMEOUTS } from '../platform/index.ts';
import { CLAIM_TIMEOUT_MS, Claims, checkRefusal } from './claims.ts';
import { type Context, lookAtOne, until } from './context.ts';
import { isBackTo } from './cuda-program.ts';
import { fail, REPORT_IT, skip } from './finding.ts';
import { runProgram, Subprocess } from './subprocess.ts';

/** A kernel that never pauses keeps a GPU busier than this, in percent. */
const MIN_UTILIZATION = 50;
/** A Python program with PyTorch exits with this where there is no PyTorch. */
const NO_PYTORCH = 3;

/** Modules of the working directory, which may be another user's, aren't imported: as `python -P`, which Python 3.10 doesn't have. */
const SAFE_PATH = `
import sys
if sys.path[0] == "":
    del sys.path[0]`;

const FIND = `${SAFE_PATH}
try:
    import torch
except ImportError:
    raise SystemExit(${NO_PYTORCH})
print(torch.__version__)`;

/** Prints how many GPUs it sees, and whether a product is right; multiplies without a pause then. */
const MULTIPLY = `${SAFE_PATH}
import torch
print(torch.cuda.device_count(), flush=True)
a = torch.randn(4096, 4096, device="cuda")
small = a[:64].double().cpu() @ a.double().cpu()
print("right" if torch.allclose((a[:64] @ a).double().cpu(), small, atol=1) else "wrong", flush=True)
while True:
    a @ a
    torch.cuda.synchronize()`;

/** The first Python in PATH that has PyTorch. */
async function findPyTorch(): Promise<{ python: string; version: string }> {
  let found = false;
  for (const python of ['python3', 'python']) {
    const { code, stdout, stderr } = await runProgram([python, '-c', FIND], 80_000);
    if (code === 127) continue;
    found = true;
    if (code === NO_PYTORCH) continue;
    if (code !== 0)
      fail(`PyTorch fails: ${stderr.trim().split('\n').at(-1) ?? ''}`, 'Repair its installation.');
    return { python, version: stdout.trim() };
  }
  return skip(found ? 'no Python in PATH has PyTorch' : 'no Python in PATH');
}

/** PyTorch computes under a claim: it sees one GPU, the product is right, the driver tells the load, and a second claim is refused. */
export async function checkPyTorch(context: Context): Promise<string> {
  const claims = new Claims(context);
  const { python, version } = await findPyTorch();
  const [gpu] = claims.gpus;
  const look = () => lookAtOne(gpu);
  const before = look();
  const program = new Subprocess([
    ...claims.words('run', ['--no-wait', '--placeholder=none'], [gpu]),
    ...['--', python, '-c', MULTIPLY],
  ]);
  try {
    const first = await program.line(CLAIM_TIMEOUT_MS);
    if (first === null && program.errors.includes('"code":"ERR_'))
      return await claims.explainRefusal('A claim is refused', undefined, [gpu]);
    if (first !== null && first !== '1')
      fail(
        `PyTorch ${version} counts ${first} GPUs where 1 is claimed.`,
        'A PyTorch for another CUDA version, or for processors only, counts none: see https://pytorch.org/get-started.',
      );
    const product = first === null ? null : await program.line(CLAIM_TIMEOUT_MS);
    if (product === null) {
      if (simulatedMachine() !== null) skip(`PyTorch ${version} can't compute on a simulated driver`);
      fail(
        `PyTorch ${version} can't multiply on a claimed GPU: ${program.errors.trim().split('\n').at(-1) || 'no answer'}.`,
        'A PyTorch for another CUDA version, or for processors only, fails: see https://pytorch.org/get-started.',
      );
    }
    if (product !== 'right')
      fail(`PyTorch ${version} multiplies wrongly on a claimed GPU.`, 'Test the GPU: `dcgmi diag -r 3`.');
    const text = await checkRefusal(claims, [gpu], `PyTorch ${version} multiplies rightly`);
    const isBusy = ({ utilizationPercent: percent }: GPU) => percent === null || percent >= MIN_UTILIZATION;
    if (await until(() => isBusy(look()), TIMEOUTS.readings)) return `${text}.`;
    return fail(
      `${text}, but the utilization of GPU ${label(gpu)} stays below ${MIN_UTILIZATION} %.`,
      `Do not rely on idle times of this GPU. ${REPORT_IT}`,
    );
  } finally {
    await program.stop();
    await until(() => isBackTo([before], look()), TIMEOUTS.forgetting);
  }
}
