import { type GPU, snapshotSync } from '../gpus/index.ts';
import { persistenceOf } from './context.ts';
import { fail, REPORT_IT, skip } from './finding.ts';
import { runProgram } from './subprocess.ts';

const TIMEOUT_MS = 20_000;
const MiB = 2 ** 20;

/** A field of `nvidia-smi --query-gpu`, and the same from a snapshot. */
interface Field {
  of: (gpu: GPU) => string | number | null;
  /** How far numbers that change may be apart: this much, and this share. */
  within?: { units: number; share: number };
}

const COMPUTE_MODES: Record<string, string> = {
  default: 'Default',
  'exclusive-thread': 'Exclusive_Thread',
  prohibited: 'Prohibited',
  'exclusive-process': 'Exclusive_Process',
};

/** Memory of programs that draw changes all the time. */
const MEMORY = { units: 16, share: 0.01 };

const FIELDS: Readonly<Record<string, Field>> = {
  index: { of: ({ index }) => String(index) },
  uuid: { of: ({ uuid }) => uuid },
  name: { of: ({ name }) => name },
  'pci.bus_id': { of: ({ pciBusId }) => pciBusId },
  'memory.total': { of: ({ memory }) => inMiB(memory.totalBytes), within: { units: 1, share: 0 } },
  'memory.used': { of: ({ memory }) => inMiB(memory.usedBytes), within: MEMORY },
  'memory.free': { of: ({ memory }) => inMiB(memory.freeBytes), within: MEMORY },
  // A mean over a second on some models, and a moment's on others.
  'power.draw': { of: ({ powerWatts }) => powerWatts, within: { units: 5, share: 0.25 } },
  'utilization.gpu': { of: ({ utilizationPercent }) => utilizationPercent, within: { units: 20, share: 0 } },
  'temperature.gpu': { of: ({ temperatureCelsius }) => temperatureCelsius, within: { units: 3, share: 0 } },
  compute_mode: {
    of: ({ computeMode }) => (computeMode === null ? null : (COMPUTE_MODES[computeMode] ?? null)),
  },
  'mig.mode.current': { of: ({ migEnabled }) => enabled(migEnabled) },
  persistence_mode: { of: ({ index }) => enabled(persistenceOf(index)) },
};

/** Every field of a snapshot is what nvidia-smi says. Values that change get a tolerance, and a second look. */
export async function checkFields(gpus: readonly GPU[]): Promise<string> {
  const wholes = gpus.filter(({ instance }) => instance === null);
  if (wholes.length === 0) skip('only MIG instances are claimed, and nvidia-smi has no such list of them');
  let compared = await compare(wholes);
  if (compared.differences.length > 0) compared = await compare(wholes);
  const { differences, fields } = compared;
  if (differences.length > 0) {
    fail(
      `${differences.join('; ')}.`,
      `Check that \`nvidia-smi\` is the one of this driver (\`command -v nvidia-smi\`). ${REPORT_IT}`,
    );
  }
  return `${fields} fields of ${wholes.length === 1 ? 'a GPU' : `${wholes.length} GPUs`} are what nvidia-smi says.`;
}

async function compare(gpus: readonly GPU[]): Promise<{ differences: string[]; fields: number }> {
  const before = snapshotSync();
  const { fields, rows } = await queryGPUs(gpus);
  const after = snapshotSync();
  const differences = gpus.flatMap((gpu) => {
    const row =
      rows.find((each) => each.includes(gpu.uuid)) ?? rows.find(([index]) => index === String(gpu.index));
    if (row === undefined) return [`GPU ${gpu.index} is not among the GPUs of nvidia-smi`];
    const looks = [before, after].map((all) => all.find(({ uuid }) => uuid === gpu.uuid) ?? gpu);
    return fields.flatMap(([name, field], i) => {
      const theirs = row[i] ?? '';
      const ours = looks.map((look) => field.of(look));
      if (agrees(theirs, ours, field)) return [];
      return [`GPU ${gpu.index}: ${name} is ${theirs} in nvidia-smi, ${ours[1] ?? 'not known'} here`];
    });
  });
  return { differences, fields: fields.length };
}

function agrees(theirs: string, ours: readonly (string | number | null)[], { within }: Field): boolean {
  const isUnknown = /^\[?(N\/A|Not Supported|Not Available|Unknown Error|Insufficient Permissions)\]?$/i.test(
    theirs,
  );
  if (isUnknown || ours.includes(null)) return isUnknown && ours.includes(null);
  if (within === undefined) return ours.some((one) => String(one).toLowerCase() === theirs.toLowerCase());
  const number = Number(theirs);
  const slack = within.units + within.share * Math.abs(number);
  const numbers = ours.map(Number);
  return number >= Math.min(...numbers) - slack && number <= Math.max(...numbers) + slack;
}

/** Asks for all fields that this nvidia-smi knows. */
async function queryGPUs(gpus: readonly GPU[]): Promise<{ fields: [string, Field][]; rows: string[][] }> {
  const uuids = gpus.map(({ uuid }) => uuid).join();
  let fields = Object.entries(FIELDS);
  for (;;) {
    const { code, output } = await runNvidiaSmi([
      `--query-gpu=${fields.map(([name]) => name)}`,
      '--format=csv,noheader,nounits',
      `--id=${uuids}`,
    ]);
    const unknown = /Field "([\w.]+)" is not a valid field/.exec(output)?.[1];
    const known = fields.filter(([name]) => name !== unknown);
    if (known.length === fields.length) {
      if (code !== 0) failed(code, output);
      return { fields, rows: table(output) };
    }
    fields = known;
  }
}

/** How long a plain query takes, in ms; null: there is no nvidia-smi. */
export async function timeOfNvidiaSmi(): Promise<number | null> {
  const began = performance.now();
  const { code } = await runProgram(['nvidia-smi', '--query-gpu=index', '--format=csv'], TIMEOUT_MS);
  return code === 0 ? performance.now() - began : null;
}

async function runNvidiaSmi(args: string[]): Promise<{ code: number | null; output: string }> {
  const { code, stdout, stderr } = await runProgram(['nvidia-smi', ...args], TIMEOUT_MS);
  if (code === 127 && stderr.includes('ENOENT')) skip('no nvidia-smi in PATH');
  return { code, output: stdout + stderr };
}

function failed(code: number | null, output: string): never {
  fail(
    `nvidia-smi failed (exit code ${code}): ${output.trim().split('\n')[0] ?? ''}`,
    'It should work first: see `dmesg | grep -i nvrm`.',
  );
}

function table(csv: string): string[][] {
  return csv
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => line.split(',').map((cell) => cell.trim()));
}

function inMiB(bytes: number | null): number | null {
  return bytes === null ? null : Math.round(bytes / MiB);
}

function enabled(value: boolean | null): string | null {
  return value === null ? null : value ? 'Enabled' : 'Disabled';
}
