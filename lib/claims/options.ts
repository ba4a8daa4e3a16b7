import {
  type Configuration,
  type ConventionChoice,
  type Criteria,
  conventionsOfEnvironment,
  loadConfiguration,
  mergeCriteria,
  type NormalizedCriteria,
  type OptionNames,
  parseBoolean,
  parseConventions,
} from '../config/index.ts';
import {
  invalidValue,
  oneOf,
  parseAbsolutePath,
  parseDuration,
  parsePercent,
  parseSize,
  usageError,
} from '../platform/index.ts';
import { requestClass, requestLimits } from './queue/index.ts';
import type { RequestClass, ShareSize, TogetherLimit } from './rules/index.ts';

/** How GPUs are claimed. Criteria narrow down which will do; configuration files of machine and user apply as well. */
export interface ClaimOptions extends Criteria {
  /** How many GPUs. Default 1. */
  count?: number | undefined;
  /**
   * So much of each GPU's memory, as a text such as '20GiB' or '25%', or in bytes; others may have the rest. Default: whole GPUs.
   * Nothing keeps the program from using more.
   */
  memory?: number | string | undefined;
  /** Only GPUs of which each two are connected by NVLink or one PCIe switch; such GPUs are waited for. Default: preferred only. */
  together?: boolean | undefined;
  /**
   * 'keep' (default): a CUDA context with a tiny allocation (1 MiB) on each GPU, so that tools that only look at the driver see
   * it as taken. The context binds this process to these GPUs: CUDA reads CUDA_VISIBLE_DEVICES once. 'none': the lease alone.
   */
  placeholder?: 'auto' | 'keep' | 'none' | undefined;
  /** How CUDA_VISIBLE_DEVICES names the GPUs: 'uuid' (default), or 'index' for software that parses integers. */
  visibleDevices?: 'uuid' | 'index' | undefined;
  /** Absolute path of another lock directory; all claimants of a machine must use the same. Default: see the documentation. */
  lockDirectory?: string | undefined;
  /** How long to wait for another claimant to decide, in ms or as '2s', before going on without waiting. Default 2 s. */
  lockTimeout?: number | string | undefined;
  /**
   * The other tools whose locks are respected, and which see this claim: 'auto' (default), 'none', or a list of the names in
   * docs/conventions.md.
   */
  conventions?: 'auto' | 'none' | readonly string[] | undefined;
  /** Served before all others that wait. For users that the machine's configuration names; ERR_NOT_PERMITTED for others. Default: false. */
  urgent?: boolean | undefined;
}

/** Options of a claim that waits. */
export interface AcquireOptions extends ClaimOptions {
  /** How long to wait at most, in ms or as '10m'. Default: without limit. */
  maxWait?: number | string | undefined;
  /** Ends the wait with ERR_ABORTED. */
  signal?: AbortSignal | undefined;
}

const CLAIM_KEYS = [
  'count',
  'memory',
  'together',
  'placeholder',
  'visibleDevices',
  'lockDirectory',
  'lockTimeout',
  'conventions',
  'urgent',
] as const;

const DEFAULTS = {
  count: 1,
  placeholder: 'auto',
  visibleDevices: 'uuid',
  lockTimeout: 2_000,
} as const;

/** The GPUs that CUDA was initialised for in this process, by the first claim with a placeholder. They never change again. */
export interface Binding {
  /** In CUDA's order. */
  uuids: readonly string[];
  /** Which claim it was, in words. */
  by: string;
}

/** The command that the GPUs are for. */
export interface ClaimPurpose {
  /** Default: as the options say. */
  readonly class?: RequestClass;
  /** The tag that it had before, as text: it has its place in the queue again. */
  readonly order?: string;
  /** How many GPUs the user may have at a time; default: any number. */
  readonly most?: number;
  /** How many GPUs the user's groups may have together; default: any number. */
  readonly together?: readonly TogetherLimit[];
  /** Whether other claims can be made inside of this one. */
  readonly isJob?: boolean;
  /** The command in the record; default: this process's own. */
  readonly command?: string;
  /** How long the command may run, for others to know; default: for ever. */
  readonly limitMs?: number;
  /** Whether the command is bound to the processors near its GPUs; default: as the configuration says. */
  readonly bindsCPUs?: boolean;
  /** The process that the GPUs are for, if it is another one and uses CUDA already: its own contexts are no obstacle. */
  readonly claimantPid?: number;
  /** For others to read of the command. */
  readonly about?: { readonly name?: string; readonly note?: string; readonly job?: number };
}

/** A claim, checked, with its defaults, and frozen. */
export interface ClaimRequest extends ClaimPurpose {
  readonly count: number;
  /** The share of each GPU; missing: whole GPUs. */
  readonly memory?: ShareSize;
  /** Only GPUs that are connected with each other. */
  readonly isConnected: boolean;
  readonly criteria: NormalizedCriteria;
  /** The caller's own choice. */
  readonly lockDirectory: string | undefined;
  /** The choice of the configuration files. */
  readonly configuredDirectory: string | undefined;
  /** How long to wait for another claimant to decide, in ms. */
  readonly lockTimeout: number;
  /** The other tools whose lock files count. */
  readonly conventions: ConventionChoice;
  /** CUDA is bound to some GPUs in this process: only these will do. */
  readonly bound?: Binding;
}

/** The GPUs to look for, and the locks that count. */
export type DiscoveryRequest = Pick<
  ClaimRequest,
  | 'criteria'
  | 'lockDirectory'
  | 'configuredDirectory'
  | 'conventions'
  | 'count'
  | 'memory'
  | 'class'
  | 'most'
  | 'together'
  | 'limitMs'
  | 'order'
  | 'bound'
  | 'claimantPid'
> &
  Partial<Pick<ClaimRequest, 'isConnected'>>;

/** Options of a claim, checked. */
export interface Settings {
  readonly request: ClaimRequest;
  readonly placeholder: 'auto' | 'keep' | 'none';
  readonly visibleDevices: 'uuid' | 'index';
}

/**
 * Checks options and adds what the configuration files say.
 * @param names what the user calls the options, for messages
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function checkOptions(
  options: ClaimOptions,
  alsoKnown: readonly string[] = [],
  names: OptionNames = {},
  purpose: ClaimPurpose = {},
): Settings {
  const configuration = loadConfiguration();
  const criteria = mergeCriteria(options, configuration, { names, alsoKnown: [...CLAIM_KEYS, ...alsoKnown] });
  const name = (key: string) => names[key] ?? key;
  return {
    request: Object.freeze({
      ...purpose,
      bindsCPUs: purpose.bindsCPUs ?? configuration.cpuBind ?? false,
      class:
        purpose.class ??
        requestClass(
          parseBoolean(given(options.urgent, false), name('urgent')),
          name('urgent'),
          configuration,
        ),
      count: checkCount(given(options.count, DEFAULTS.count), name('count')),
      ...(options.memory === undefined ? {} : { memory: checkMemory(options.memory, name('memory')) }),
      isConnected: checkConnected(options, name),
      criteria,
      lockDirectory: checkDirectory(options.lockDirectory, name('lockDirectory')),
      configuredDirectory: configuration.lockDirectory,
      // Preemptible GPUs are those that would be idle.
      ...(purpose.class === 'preemptible' ? {} : requestLimits(configuration)),
      lockTimeout: parseDuration(
        given(options.lockTimeout, configuration.lockTimeout, DEFAULTS.lockTimeout),
        name('lockTimeout'),
      ),
      conventions: checkConventions(options.conventions, configuration, name('conventions')),
    }),
    placeholder: oneOf(
      given(options.placeholder, configuration.placeholder, DEFAULTS.placeholder),
      ['auto', 'keep', 'none'],
      name('placeholder'),
    ),
    visibleDevices: oneOf(
      given(options.visibleDevices, formInJob(), configuration.visibleDevices, DEFAULTS.visibleDevices),
      ['uuid', 'index'],
      name('visibleDevices'),
    ),
  };
}

/** The call's over the environment's over what the files say. @throws ERR_INVALID_ARGUMENT for unknown names */
export function checkConventions(
  value: unknown,
  configuration: Pick<Configuration, 'conventions'>,
  name: string,
): ConventionChoice {
  if (value !== undefined) return parseConventions(value, name);
  return conventionsOfEnvironment() ?? configuration.conventions ?? 'auto';
}

/** The first that isn't undefined: null is a mistake, not a default. */
function given(...values: unknown[]): unknown {
  return values.find((value) => value !== undefined);
}

/** Inside a job the software is the same, so what its `run` was told of it still holds. */
function formInJob(): 'uuid' | 'index' | undefined {
  const { CUDA_VISIBLE_DEVICES = '', CUDA_DEVICE_ORDER } = process.env;
  if (!process.env.GPU_OWNER_JOB || CUDA_VISIBLE_DEVICES === '') return undefined;
  return /^\d+(,\d+)*$/.test(CUDA_VISIBLE_DEVICES) && CUDA_DEVICE_ORDER === 'PCI_BUS_ID' ? 'index' : 'uuid';
}

const MAX_GPUS = 1024;

function checkCount(value: unknown, name: string): number {
  if (Number.isSafeInteger(value) && Number(value) >= 1 && Number(value) <= MAX_GPUS) return Number(value);
  throw invalidValue(name, value, 'a number of GPUs', 'use 1, 2, …');
}

/** @returns whether connections are asked for, and more than one GPU @throws ERR_INVALID_ARGUMENT */
function checkConnected({ together, memory, count }: ClaimOptions, name: (key: string) => string): boolean {
  const isAsked = parseBoolean(given(together, false), name('together'));
  if (isAsked && memory !== undefined)
    throw usageError(
      `${name('together')} and ${name('memory')} contradict each other: a share is for programs that use a part of a GPU`,
    );
  return isAsked && count !== undefined && count > 1;
}

/** @throws ERR_INVALID_ARGUMENT */
function checkMemory(value: unknown, name: string): ShareSize {
  const isPercent = typeof value === 'string' && value.trim().endsWith('%');
  const examples = "use '20GiB' or '25%'";
  const size = isPercent
    ? { percent: parsePercent(value, name, examples) }
    : { bytes: parseSize(value, name) };
  if (Math.max(...Object.values(size)) > 0) return size;
  throw invalidValue(name, value, 'a share of a GPU', examples);
}

export function checkDirectory(value: unknown, name: string): string | undefined {
  return value === undefined ? value : parseAbsolutePath(value, name);
}
