// The parts of a real machine that are here: NVIDIA's driver, nvidia-smi, Python modules. Each answer is { available: true,
// version, … } or { available: false, why }, so that a benchmark can use it, or say what it left out and why. Answers are asked
// for once.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { compiled } from './measure.js';

const LIBRARY = 'libnvidia-ml.so.1';
const SECONDS = 30;
const answers = new Map();

function once(key, ask) {
  if (!answers.has(key)) answers.set(key, ask());
  return answers.get(key);
}

/** NVIDIA's driver, with a GPU. Also `library`, for dlopen, and `gpus`, their names. */
export function realDriver() {
  return once('driver', () => {
    const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
    try {
      const answer = run(compiled(directory, 'smi.c'), [LIBRARY, 'driver']);
      if (!answer.available) return answer;
      const [version, ...gpus] = answer.lines;
      if (gpus.length === 0) return { available: false, why: `the driver (${version}) knows no GPU` };
      return { available: true, version, library: LIBRARY, gpus };
    } catch (error) {
      return { available: false, why: error.message };
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
}

/** Also `program`. The version is the driver's. */
export function nvidiaSmi() {
  return once('nvidia-smi', () => {
    const answer = run('nvidia-smi', ['--query-gpu=driver_version', '--format=csv,noheader']);
    if (!answer.available) return answer;
    return { available: true, version: answer.lines[0], program: 'nvidia-smi' };
  });
}

/** Also `program`, a Python that has the module. @param module as it is imported: 'pynvml', 'torch' */
export function pythonWith(module) {
  return once(`python ${module}`, () => {
    const program = ['python3', 'python'].find((name) => spawnSync(name, ['--version']).status === 0);
    if (program === undefined) return { available: false, why: 'Python is not installed' };
    const script = `import ${module}; print(getattr(${module}, "__version__", "of unknown version"))`;
    const answer = run(program, ['-c', script]);
    if (answer.available) return { available: true, version: answer.lines[0], program };
    const missing = answer.why.includes('ModuleNotFoundError');
    return missing ? { available: false, why: `${program} has no module ${module}` } : answer;
  });
}

function run(program, args) {
  const { error, status, stdout, stderr } = spawnSync(program, args, {
    encoding: 'utf8',
    timeout: SECONDS * 1000,
  });
  if (error?.code === 'ENOENT') return { available: false, why: `${program} is not installed` };
  if (error?.code === 'ETIMEDOUT') return { available: false, why: `${program} took more than ${SECONDS} s` };
  if (error !== undefined) return { available: false, why: error.message };
  if (status !== 0) {
    const said = (stderr.trim() || stdout.trim()).split('\n').at(-1);
    return { available: false, why: said || `${program} exited with ${status}` };
  }
  return { available: true, lines: stdout.trim().split('\n').filter(Boolean) };
}
