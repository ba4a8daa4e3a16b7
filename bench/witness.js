// An independent witness that no GPU had two holders while a benchmark hurried. Each holder notes in a shared log when it began to use a
// GPU, after it got it, and when it stopped, before it gave it back, on the machine's monotonic clock. Nothing of gpu-owner is asked:
// two intervals of one GPU that overlap are a violation. Noting costs one write, so throughput hardly suffers.
//
// The log: "PID had NANOSECONDS GPU", "PID gone NANOSECONDS GPU", and "PID killed NANOSECONDS", noted just before a kill.
// Holders in JavaScript use testimony(), commands of `gpu-owner run` and other programs baselines/witness.c.
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
    /** @returns { holds, gpus }: how much it saw. @throws if a GPU had two holders at once, or nothing was seen at all */
    check: () => judge(readFileSync(path, 'utf8')),
  };
}

/** In a holder. @param path the witness's. @returns had(gpus) and gone(gpus), to be called just after and just before */
export function testimony(path) {
  const log = openSync(path, 'a');
  const note = (what) => (gpus) => {
    const at = process.hrtime.bigint();
    writeSync(log, [...gpus].map((gpu) => `${process.pid} ${what} ${at} ${gpu}\n`).join(''));
  };
  return { had: note('had'), gone: note('gone') };
}

function judge(text) {
  const holds = intervals(text).sort((a, b) => (a.had < b.had ? -1 : 1));
  if (holds.length === 0) throw new Error('the witness saw no holder at all');
  const last = new Map();
  for (const hold of holds) {
    const before = last.get(hold.gpu);
    if (before !== undefined && hold.had < before.gone) throw new Error(violation(before, hold));
    last.set(hold.gpu, hold);
  }
  return { holds: holds.length, gpus: last.size };
}

/** A hold whose end isn't noted lasts for ever: the next hold of the GPU is a violation, rather than overlooked. */
function intervals(text) {
  const holds = [];
  const open = new Map();
  for (const line of text.split('\n').filter(Boolean)) {
    const [pid, what, at, gpu] = line.split(' ');
    if (what === 'had') {
      const hold = { pid, gpu, had: BigInt(at), gone: null };
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

function violation(first, second) {
  const overlap = Number((first.gone < second.gone ? first.gone : second.gone) - second.had) / 1e3;
  return `${first.gpu} had two holders, processes ${first.pid} and ${second.pid}, for ${overlap.toFixed(1)} us at least`;
}
