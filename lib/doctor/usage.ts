import { simulatedMachine } from '../config/index.ts';
import { formatMode, isRoot, listWords, pathIn, statusOf, userName } from '../platform/index.ts';
import { ledgerDirectory, ledgerProblem, MACHINE_LEDGER, readLedger } from '../usage/index.ts';
import type { Report } from './finding.ts';

const MAX_NAMED = 5;
const MODE = 0o1777;

/** The ledger of usage, which reports sum up: claims don't need it. */
export function checkLedger(report: Report, lockDirectory: string): void {
  report.step('looking at the ledger of usage');
  const path = ledgerDirectory(lockDirectory, simulatedMachine() !== null);
  if (path === null) {
    report.add(
      'ledger-missing',
      `No ledger says who used how much: ${lockDirectory} is lost at a reboot.`,
      `As root, to have \`gpu-owner report\`: \`install -d -m 1777 ${MACHINE_LEDGER}\``,
    );
    return;
  }
  const status = statusOf(path);
  if (status === null) return; // the first lease makes it
  const problem = ledgerProblem(path);
  if (problem !== null) {
    report.add(
      'ledger-mode',
      `${problem.cause}: leases aren't noted in the ledger of usage.`,
      problem.remedy,
    );
    return;
  }
  const owner = path === MACHINE_LEDGER ? 0 : statusOf(lockDirectory)?.uid;
  const isOthers = !isRoot(status.uid) && status.uid !== owner;
  if (status.mode !== MODE || isOthers) {
    report.add(
      'ledger-mode',
      `The ledger of usage ${path} belongs to ${userName(status.uid)} with mode ${formatMode(status)}: some users' leases aren't noted, or others can remove what is.`,
      `As root: \`chmod 1777 ${path}\`${isOthers ? `, \`chown root ${path}\`` : ''}`,
    );
  }
  const { foreign, damaged } = readLedger(path, 0);
  if (foreign.length > 0) {
    const names = foreign.slice(0, MAX_NAMED).map((name) => pathIn(path, name));
    report.add(
      'ledger-files',
      `${listWords(names)}${foreign.length > MAX_NAMED ? ` and ${foreign.length - MAX_NAMED} more` : ''} ${foreign.length === 1 ? "isn't a file" : "aren't files"} of the user in the name, or too large: reports skip ${foreign.length === 1 ? 'it' : 'them'}.`,
      `As root: \`rm ${names.join(' ')}\``,
    );
  }
  for (const [name, lines] of damaged) {
    report.add(
      'ledger-damaged',
      `${lines === 1 ? 'A line' : `${lines} lines`} of ${pathIn(path, name)} ${lines === 1 ? 'makes' : 'make'} no sense: reports skip ${lines === 1 ? 'it' : 'them'}. A disk was full, or the owner changed the file.`,
      null,
    );
  }
}
