// Tells a user of what will happen to a process: on the user's terminals, and by the command of the configuration.
import { closeSync, constants, fstatSync, openSync, readdirSync, writeSync } from 'node:fs';
import { loadNotificationTargets } from '../config/index.ts';
import { ifPossible, isFailure } from '../errors.ts';
import { hostName, runLimited } from '../platform/index.ts';

const TERMINALS = '/dev/pts';
const COMMAND_TIMEOUT_MS = 30_000;
const MAX_TERMINALS = 100;

/** @returns on how many terminals it was written */
export function writeToTerminals(uid: number, text: string, directory = TERMINALS): number {
  let count = 0;
  for (const name of terminalsIn(directory)) {
    const flags = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY | constants.O_NOFOLLOW;
    const descriptor = ifPossible(() => openSync(`${directory}/${name}`, flags), null);
    if (descriptor === null) continue; // the terminal was closed
    try {
      const status = fstatSync(descriptor);
      if (!status.isCharacterDevice() || status.uid !== uid) continue;
      writeSync(descriptor, `\r\n\u0007*** ${text}\r\n`);
      if (++count >= MAX_TERMINALS) break;
    } catch (error) {
      // The user has stopped the output: the terminal takes no more.
      if (!isFailure(error)) throw error;
    } finally {
      closeSync(descriptor);
    }
  }
  return count;
}

function terminalsIn(directory: string): string[] {
  return ifPossible(() => readdirSync(directory).filter((name) => /^\d+$/.test(name)), []);
}

/** Runs `notifyCommand` of the configuration as the user, and doesn't wait for it. @param onFailure called with the reason of a failure */
export function runNotifyCommand(
  { uid, gid, user }: { uid: number; gid: number; user: string },
  event: string,
  text: string,
  onFailure: (why: string) => void,
): void {
  const { command } = loadNotificationTargets();
  if (command === null) return;
  const env = {
    PATH: process.env.PATH,
    USER: user,
    LOGNAME: user,
    GPU_OWNER_EVENT: event,
    GPU_OWNER_TEXT: text,
  };
  const message = `${JSON.stringify({ event, text, host: hostName(), user })}\n`;
  void runLimited(command, message, COMMAND_TIMEOUT_MS, { env, uid, gid }).then((why) => {
    if (why !== null) onFailure(why);
  });
}
