import { GPUOwnerError } from '../../lib/errors.ts';
import { nativeFile } from '../../lib/native.ts';
import { schema } from '../../lib/platform/index.ts';

/** A simulated machine, as much of it as scenarios need to be checked against. */
const MACHINE = schema.jsonOf(
  schema.record({
    machine: schema.text,
    gpus: schema.listOf(
      schema.record({
        uuid: schema.text,
        memory: schema.record({ totalBytes: schema.whole() }),
        migInstances: schema.listOf(schema.record({ uuid: schema.text })),
      }),
    ),
  }),
);
export type ShownMachine = schema.Checked<typeof MACHINE>;

/** The simulator's own command, for one machine. */
export class Simulator {
  readonly program = nativeFile('gpu-owner-simulator');
  readonly env: NodeJS.ProcessEnv;

  /** @param machine as GPU_OWNER_SIMULATE names it */
  constructor(machine: string) {
    this.env = { ...process.env, GPU_OWNER_SIMULATE: machine };
  }

  /** @throws ERR_INVALID_ARGUMENT where there is no such machine */
  show(): ShownMachine {
    return MACHINE(this.#run(['show', '--json']), 'machine');
  }

  /** @throws ERR_INVALID_ARGUMENT if that can't be set */
  checkSet(words: readonly string[]): void {
    this.#run(['set', '--check', ...words]);
  }

  set(words: readonly string[]): void {
    this.#run(['set', ...words]);
  }

  reset(): void {
    this.#run(['reset']);
  }

  #run(args: readonly string[]): string {
    const { spawnSync } = process.getBuiltinModule('node:child_process');
    const { status, stdout, stderr, error } = spawnSync(this.program, args, {
      env: this.env,
      encoding: 'utf8',
    });
    if (status === 0) return stdout;
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      reasonIn(stderr) || `${this.program} failed: ${error?.message ?? status}`,
    );
  }
}

/** The message of the simulator's command, without its name and its reference to help. */
export function reasonIn(stderr: string): string {
  return stderr
    .replace(/^gpu-owner simulat(?:e|or): /gm, '')
    .replace(' (gpu-owner simulate --help shows how it is used)', '')
    .trim();
}
