import { GPUOwnerError } from '../../errors.ts';
import type { SweepSource } from '../../experiments/index.ts';
import { showValue } from '../../platform/index.ts';
import type { OptionTable, Parsed } from '../arguments.ts';

/** Options of commands that take a sweep. Words before `--` are its files; after --grid, those with `=` are axes. */
export const SWEEP = {
  grid: { type: 'string', multiple: true },
  commands: { type: 'string' },
  phase: { type: 'string' },
  'output-dir': { type: 'string' },
  shell: { type: 'boolean' },
  yes: { type: 'boolean', short: 'y' },
} as const satisfies OptionTable;

export const SWEEP_HELP = `What to run (default: the project's configs/config_exp*.yaml):
  FILE ...                  sweep files in YAML
  --grid NAME=VALUES ...    an inline grid: width=1,2 seed=42..44
  --commands FILE           a command per line ("-": from standard input)
  --phase NAME              what the phase of grid or commands is called
  --output-dir TEMPLATE     where its results go (default: results_{phase})
  --shell                   commands are lines for sh
  -y, --yes                 more than 100,000 tasks are meant
COMMAND may have {parameters} in its words, and {phase} and {output_dir}; {{ and
}} are braces. It is used instead of what sweep files say.`;

/**
 * The sweep that a command line asks for.
 * @param parsed with {@link SWEEP} among the options, 'behind-dashes'
 * @throws ERR_INVALID_ARGUMENT
 */
export function sweepSource({ values, positionals, command }: Parsed, project: string): SweepSource {
  const { grid, commands, phase, shell, yes } = values;
  const outputDirectory = values['output-dir'];
  // A file with = in its name can be written ./a=b.yaml.
  const isAxis = (word: string) => /^[^/]*=/.test(word);
  const axes = positionals.filter(isAxis);
  if (axes.length > 0 && grid === undefined) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${showValue(axes[0])} looks like a part of a grid; write --grid ${axes[0]}, or ./${axes[0]} for a file of this name`,
    );
  }
  const given = <K extends string, V>(key: K, value: V) => (value === undefined ? {} : { [key]: value });
  return {
    project,
    files: positionals.filter((word) => !isAxis(word)),
    grid: [...((grid as string[] | undefined) ?? []), ...axes],
    shell: shell === true,
    yes: yes === true,
    ...given('commands', commands),
    ...given('phase', phase),
    ...given('outputDirectory', outputDirectory),
    ...given('command', command.length > 0 ? command : undefined),
  };
}
