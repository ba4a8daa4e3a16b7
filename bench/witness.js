// An independent witness that no GPU had two holders while a benchmark hurried, nor gave more shares than there is of it. Each holder notes
// in a shared log when it began to use a GPU, after it got it, and when it stopped, before it gave it back, on the machine's monotonic
// clock. Nothing of gpu-owner is asked. Noting costs one write, so throughput hardly suffers.
//
// The log: "PID had NANOSECONDS GPU [PART]", "PID gone NANOSECONDS GPU [PART]", and "PID killed NANOSECONDS", noted just before a kill.
// Later notes of that process don't count, until another one with its number says "PID born NANOSECONDS".
// Holders in JavaScript use testimony().
import { appendFileSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** In the benchmark: starts a log in a local directory (on network file systems lines of several writers may get mixed). */
export function openWitness(directory) {
  const path = join(directory, 'witness.log');
  writeFileSync(path, '', { flag: 'wx' });
  return {
    /** For the holders. */
    path,
    /** To be called just before a holder is killed, which can't note its end itself. */
    killed: (pid) => appendFileSync(path, `${pid} killed ${process.hrtime.bigint()}\n`),
    /** @returns { holds, gpus, all }: how much it saw, and each hold. @throws if a GPU was given twice, or nothing was seen at all */
    check: () => judge(readFileSync(path, 'utf8')),
  };
}

/**
 * In a holder. @param path the witness's. @returns had(gpus) and gone(gpus), to be called just after and just before, with
 * names of GPUs; 'GPU 0.25' is a share
 */
export function testimony(path) {
  const log = openSync(path, 'a');
  writeSync(log, `${process.pid} born ${process.hrtime.bigint()}\n`);
  const note = (what) => (gpus) => {
    const at = process.hrtime.bigint();
    writeSync(log, [...gpus].map((gpu) => `${process.pid} ${what} ${at} ${gpu}\n`).join(''));
  };
  return { had: note('had'), gone: note('gone') };
}

/** Parts add up with errors of this size. */
const ROUNDING = 1e-9;

function judge(text) {
  const holds = intervals(text).filter(({ had, gone }) => had < gone);
  if (holds.length === 0) throw new Error('the witness saw no holder at all');
  const changes = holds.flatMap((hold) => [
    { at: hold.had, begins: true, hold },
    { at: hold.gone, begins: false, hold },
  ]);
  changes.sort((a, b) => (a.at === b.at ? a.begins - b.begins : a.at < b.at ? -1 : 1));
  const present = new Map(holds.map(({ gpu }) => [gpu, new Set()]));
  for (const { begins, hold } of changes) {
    const holders = present.get(hold.gpu);
    if (!begins) holders.delete(hold);
    else {
      holders.add(hold);
      const given = [...holders].reduce((sum, { part }) => sum + part, 0);
      if (given > 1 + ROUNDING) throw new Error(violation([...holders]));
    }
  }
  return { holds: holds.length, gpus: present.size, all: holds };
}

/** A hold whose end isn't noted lasts for ever: the next hold of the GPU is a violation, rather than overlooked. */
function intervals(text) {
  const holds = [];
  const open = new Map();
  const killed = new Set();
  for (const line of text.split('\n').filter(Boolean)) {
    const [pid, what, at, gpu, part = '1'] = line.split(' ');
    if (what === 'born') killed.delete(pid);
    else if (killed.has(pid)) continue;
    else if (what === 'had') {
      const hold = { pid, gpu, part: Number(part), had: BigInt(at), gone: null };
      const key = `${pid} ${gpu}`;
      if (open.has(key))
        throw new Error(`process ${pid} noted twice that it had ${gpu}, with no end between`);
      open.set(key, hold);
      holds.push(hold);
    } else if (what === 'gone') {
      const hold = open.get(`${pid} ${gpu}`);
      if (hold === undefined) throw new Error(`process ${pid} noted the end of what it never had: ${gpu}`);
      hold.gone = BigInt(at);
      open.delete(`${pid} ${gpu}`);
    } else if (what === 'killed') {
      killed.add(pid);
      for (const [key, hold] of open) {
        if (hold.pid !== pid) continue;
        hold.gone = BigInt(at);
        open.delete(key);
      }
    } else throw new Error(`the witness's log has a line that can't be read: ${JSON.stringify(line)}`);
  }
  const never = holds.reduce((latest, { had, gone }) => max(latest, had, gone ?? 0n), 0n) + 1n;
  for (const hold of open.values()) hold.gone = never;
  return holds;
}

function max(...values) {
  return values.reduce((a, b) => (a > b ? a : b));
}

function violation(holders) {
  const first = holders.reduce((a, b) => (a.gone < b.gone ? a : b));
  const overlap = Number(first.gone - holders.at(-1).had) / 1e3;
  const processes = holders.map(({ pid }) => pid);
  const who =
    holders.length === 2 && holders.every(({ part }) => part === 1)
      ? `two holders, processes ${processes.join(' and ')},`
      : `holders of more than all of it, processes ${processes.join(', ')},`;
  return `${holders[0].gpu} had ${who} for ${overlap.toFixed(1)} us at least`;
}
