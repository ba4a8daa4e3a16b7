import { checkDirectory } from '../claims/index.ts';
import { runCheck, runChecks } from '../doctor/index.ts';
import { LOCKS } from './claim-options.ts';
import type { Command } from './command.ts';
import { doctorPage } from './doctor-page.ts';
import { type Option, type Parsed, refuseWords } from './options.ts';
import { hasColour, isTerminal, pageWidth, print, say } from './output.ts';

const EXIT_PROBLEMS = 1;

async function doctor(parsed: Parsed): Promise<void> {
  const { values } = parsed;
  refuseWords(parsed);
  const options = { lockDirectory: checkDirectory(values['lock-dir'], '--lock-dir') };
  if (typeof values.part === 'string') {
    await runCheck(values.part, options, print);
    process.exit(0); // whatever thread of the driver's is stuck
  }
  const command = [process.execPath, ...process.execArgv, process.argv[1] as string];
  const findings = await runChecks(command, options, (doing) => {
    if (isTerminal(2)) say(`still ${doing} …`);
  });
  print(
    values.json
      ? JSON.stringify(findings, null, 2)
      : doctorPage(findings, { width: pageWidth(), colour: hasColour() }),
  );
  // Not by an exit code to be: processes that hang must not keep this one.
  process.exit(findings.some(({ level }) => level === 'problem') ? EXIT_PROBLEMS : 0);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Checks everything that claims depend on: the installation, the driver, the GPUs, the lock directory, the environment (containers, private /tmp), other tools' locks, and the configuration. It reports what it finds and what to do about it. It takes nothing, writes nothing and disturbs no claim. It starts the driver as every claim does: as root, the driver's library creates missing device nodes in /dev.`,
  groups: [
    {
      options: {
        json: {
          help: 'print an array of { id, level, subject, text, remedy }; level is ok, note, warning or problem',
        },
        'lock-dir': LOCKS['lock-dir'] as Option,
        part: { value: 'NAME', help: 'run one check; the doctor calls itself by it', isHidden: true },
      },
    },
  ],
  notes: `Exit code: 0 if there is no problem (there may be notes and warnings), 1 if there is one.`,
  run: doctor,
};
