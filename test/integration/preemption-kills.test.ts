// Preemptible jobs give way again and again while processes of theirs are killed at random. The commands note themselves what
// they see: a lock per GPU and per job, which the kernel drops with them.
import { mkdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Jobs } from '../jobs/background.ts';
import { finished, Machine, pause, python, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { Random } from '../support/random.ts';

const ROUNDS = process.env.GPU_OWNER_SOAK ? 300 : 3;
const GPUS = 3;
const JOBS = 4;
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);

let machine: Machine;
let jobs: Jobs;
afterEach(async () => {
  await jobs.end();
  await machine.close();
});

/** Locks its GPUs and its job, and says so if they are locked. Ends on SIGTERM after some time, or with 0 when it is told to. */
const witness = (directory: string) => `
import fcntl, os, random, signal, sys, time
job = sys.argv[1]
journal = os.open("${directory}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(text): os.write(journal, (text + "\\n").encode())
kept = []
for name in [job, *os.environ["CUDA_VISIBLE_DEVICES"].split(",")]:
    kept.append(open("${directory}/" + name, "w"))
    try: fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: note("TWICE " + name)
def end(*_):
    time.sleep(random.random() * 0.3)
    os._exit(3)
signal.signal(signal.SIGTERM, end)
note("start " + job + " " + os.environ.get("GPU_OWNER_RESTART", "-"))
until = time.time() + float(sys.argv[2])
while time.time() < until and not os.path.exists("${directory}/stop"): time.sleep(0.02)
`;

test(`${ROUNDS} preemptions with kills: no job is lost, none runs twice, no GPU is given twice (GPU_OWNER_TEST_SEED=${SEED})`, {
  timeout: ROUNDS * 20_000 + 60_000,
}, async () => {
  machine = new Machine(GPUS);
  jobs = new Jobs(machine);
  const random = new Random(SEED);
  const directory = join(machine.directory, 'witness');
  mkdirSync(directory);
  writeFileSync(join(directory, 'journal'), '');
  const program = join(directory, 'witness.py');
  writeFileSync(program, witness(directory));
  const words = (name: string, seconds: number) => ['--', python, program, name, String(seconds)];
  const submit = (count: number, name: string) =>
    jobs.submit([
      '--preemptible',
      '--grace',
      '400ms',
      '-n',
      String(count),
      '--name',
      name,
      ...words(name, 3_600),
    ]);
  const living = new Map<number, { killedAt: number; killed: string }>();
  let named = 0;
  const fill = async () => {
    while (living.size < JOBS)
      living.set(await submit(1 + random.integer(2), `job${named++}`), { killedAt: -1, killed: '' });
  };
  const preemptions = new Map<number, number>();
  for (let round = 0; round < ROUNDS; round++) {
    await fill();
    const count = 1 + random.integer(GPUS);
    const other = finished(
      machine.startCommand([
        'run',
        '--placeholder',
        'none',
        '-n',
        String(count),
        ...words(`other${round}`, 0.3),
      ]),
    );
    await pause(random.integer(900));
    const target = random.pick([...living.keys()]) as number;
    const kind = random.pick(['front', 'keeper', 'keeper', 'pid', 'none']) as string;
    const block = readFileSync(join(jobs.directoryOf(target), 'job'), 'latin1')
      .slice(4096, 4608)
      .trim();
    const state = block === '' ? null : JSON.parse(block);
    const fate = living.get(target) as { killedAt: number; killed: string };
    // Both of front and keeper, killed one after the other, would leave the command alone.
    if (
      state?.requeued === null &&
      state.ended === null &&
      fate.killedAt < state.preempted &&
      isKeeper(state[kind], kind)
    ) {
      sendSignal(state[kind], 'SIGKILL');
      fate.killedAt = state.preempted;
      fate.killed = kind;
    }
    const { code, stderr } = await other;
    expect({ code, stderr: code === 0 ? '' : stderr }, `round ${round}, ${kind}`).toEqual({
      code: 0,
      stderr: '',
    });
    for (const job of await jobs.list()) {
      if (!living.has(job.id)) continue;
      preemptions.set(job.id, job.preempted);
      if (job.state === 'waiting' || job.state === 'running') continue;
      // A command that is killed has failed, unless it gave way just then.
      expect(
        { state: job.state, killed: living.get(job.id)?.killed },
        `round ${round}: job ${job.id}`,
      ).toEqual({
        state: 'failed',
        killed: 'pid',
      });
      living.delete(job.id);
    }
    expect(readFileSync(join(directory, 'journal'), 'latin1')).not.toContain('TWICE');
  }
  writeFileSync(join(directory, 'stop'), '');
  await until(async () =>
    (await jobs.list()).every(
      ({ id, state }) => !living.has(id) || state === 'completed' || living.get(id)?.killed === 'pid',
    ),
  );
  await until(async () => (await machine.states()).every((state) => state === 'free'));
  expect(readFileSync(join(directory, 'journal'), 'latin1')).not.toContain('TWICE');
  const sum = [...preemptions.values()].reduce((all, each) => all + each, 0);
  expect(sum).toBeGreaterThanOrEqual(Math.floor(ROUNDS / 3));
});

function isKeeper(pid: number | null, kind: string): boolean {
  if (kind === 'none' || typeof pid !== 'number') return false;
  try {
    return kind === 'pid' || readlinkSync(`/proc/${pid}/exe`).endsWith('gpu-owner-keeper');
  } catch {
    return false;
  }
}
