import { type CheckResult, Page, runPart, runSelftest, type SelftestReport } from '../check/index.ts';
import { ownProgram, parseDuration } from '../platform/index.ts';
import { CRITERIA, countOption, WAIT } from './claim-options.ts';
import { checkClaim, claimOptions, waitOption } from './claim-values.ts';
import type { Command } from './command.ts';
import {
  type InferValues,
  type OptionGroup,
  type OptionTable,
  type Parsed,
  rejectOperands,
  SIMULATE,
} from './command-line.ts';
import { toArguments } from './hosts.ts';
import { hasColour, pageWidth, print, show, write } from './output.ts';

const EXIT_FAILED = 1;
const DEFAULT_TIMEOUT = '5m';

/** Which GPUs it may claim. */
const OFFERED = {
  devices: CRITERIA.devices,
  'max-used-memory': CRITERIA['max-used-memory'],
  'allow-processes': CRITERIA['allow-processes'],
  force: CRITERIA.force,
} satisfies OptionTable;
const ONLY = {
  only: { value: 'LIST', help: 'make only these checks: exclusion,hand-over', isAdvanced: true },
} satisfies OptionTable;

const GROUPS = [
  {
    options: {
      gpus: {
        ...countOption('claim').gpus,
        help: 'claim N GPUs (default: two, or one where two are not free)',
      },
      ...WAIT,
      timeout: {
        value: 'DURATION',
        help: `take at most this long once the GPUs are claimed (default ${DEFAULT_TIMEOUT})`,
      },
      json: { help: 'print { driver, gpus, checks: [{ name, result, detail, remedy }] }, for bug reports' },
      ...OFFERED,
      ...SIMULATE,
      ...ONLY,
    },
  },
] as const satisfies readonly OptionGroup[];

async function selftest(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { request } = checkClaim(values);
  const timeoutMs = parseDuration(values.timeout ?? DEFAULT_TIMEOUT, '--timeout');
  const wait = waitOption(values, false);
  const page = new Page(pageWidth(), hasColour());
  const report = await runSelftest({
    command: ownProgram(),
    claim: offeredWords(values),
    only: values.only,
    count: values.gpus === undefined ? null : request.count,
    wait: wait === null ? ['--no-wait'] : [wait.maxWait === null ? '--wait' : `--wait=${wait.maxWait}`],
    timeoutMs,
    onResult: (result) => {
      if (!values.json) print(entry(result, page));
    },
    onProgress: (line) => write(2, `${line}\n`),
  });
  show(values.json ? report : conclusion(report, page));
  process.exit(report.checks.some(({ result }) => result === 'failed') ? EXIT_FAILED : 0);
}

/** The options that say which GPUs may be claimed, as words. */
function offeredWords(values: InferValues<typeof OFFERED>): string[] {
  return toArguments(values, (name) => Object.hasOwn(OFFERED, name));
}

const PART_GROUPS = [{ options: { ...OFFERED, ...ONLY } }] as const satisfies readonly OptionGroup[];

export const CHECK_PART: Command = {
  usage: 'doctor|claim|gpu[:UUIDS]',
  about: 'Makes some checks of the doctor or of the self-test, which start this, and prints what they find.',
  groups: PART_GROUPS,
  run: async ({ values, positionals: [part = ''] }: Parsed<typeof PART_GROUPS>) => {
    const claim = offeredWords(values);
    const { only } = values;
    await runPart(part, {
      command: ownProgram(),
      claim,
      claimOptions: claimOptions(values),
      only,
      write: print,
    });
    process.exit(0); // a thread of the driver's may be stuck
  },
};

const COLOURS = { passed: '32', failed: '31', skipped: '36' } as const;
const RESULT_WIDTH = 'skipped'.length;
const NAME_WIDTH = 22;

/** A result, as soon as it is known. */
function entry({ name, result, detail, remedy }: CheckResult, page: Page): string {
  const label = page.paint(result, COLOURS[result]) + ' '.repeat(RESULT_WIDTH - result.length);
  const width = RESULT_WIDTH + 2 + NAME_WIDTH;
  return page.entry(`${label}  ${name.padEnd(NAME_WIDTH)}`, width, detail, remedy).join('\n');
}

function conclusion({ driver, gpus, checks }: SelftestReport, page: Page): string {
  const counts = (['passed', 'failed', 'skipped'] as const).map((result) => {
    const count = checks.filter((check) => check.result === result).length;
    return count === 0 ? `${count} ${result}` : page.paint(`${count} ${result}`, COLOURS[result]);
  });
  const where = driver.simulated === null ? `driver ${driver.version}` : 'a simulated driver';
  return `\n${counts.join(', ')}: ${gpus.length === 1 ? '1 GPU' : `${gpus.length} GPUs`}, ${where}.`;
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Claims GPUs, and checks on them what gpu-owner relies on: whether its readings are those of nvidia-smi, who sees a claim and how soon, which GPUs a command sees, what the driver does after kill -9, and what everything costs. It uses only GPUs that it has claimed, needs no root, and releases all of them, also after Ctrl-C.`,
  groups: GROUPS,
  notes: `Exit code: 0 if no check failed (some may not be possible here), 1 if one failed, 75 if no GPU is free.`,
  run: selftest,
};
