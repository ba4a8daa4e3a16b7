// The sums of the ledger against the time for which the kernel's locks on the lease files were held, as another program watches them.
// Each of two users has GPUs; their processes are killed, and all at once, as a reboot does.
import {
  appendFileSync,
  chownSync,
  mkdirSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import type { Report } from '../../lib/usage/index.ts';
import {
  finished,
  Machine,
  NOBODY,
  output,
  pause,
  python,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { nameOf, processesWith, sendSignal, treeOf } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { withTimeouts } from '../support/time.ts';

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const LEASES = SOAK ? 10_000 : 28;
const KINDS = ['run', 'library', 'run', 'keeper', 'run', 'library', 'front', 'run', 'all'] as const;
/** How many GPUs each user has: leases mostly wait for their end, and these do so side by side. */
const GPUS_EACH = SOAK ? 4 : 1;
/** In one process, one after the other. */
const LEASES_OF_LIBRARY = SOAK ? 6 : 3;
const NOTE_MS = 10;
/** How much later a busy machine may let a keeper write a note, in s: so much is lost of a lease that is killed. */
const LATE_S = SOAK ? 0 : 0.05;

const seed = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
const dice = new Random(seed);

let machine: Machine;
afterEach(() => machine.close());

test(`over ${LEASES} leases with kills, the report is right within 1 %, whatever others write into the ledger`, {
  timeout: LEASES * 1_500 + 60_000,
  skip: whyNotNobody() !== null,
}, async () => {
  const users = [
    { uid: undefined, name: 'root' },
    { uid: NOBODY, name: 'nobody' },
  ];
  const lanes = Array.from({ length: users.length * GPUS_EACH }, (_, gpu) => ({
    gpu,
    of: gpu % users.length,
  }));
  machine = new Machine(lanes.length);
  const files = lanes.map(({ gpu }) => join(machine.lockDirectory, `${uuidOf(gpu)}.lease`));
  // Made by root, as the package makes it.
  await machine.runCommand(['run', '--devices', '0', 'true']);
  const before = await report();
  const witness = machine.start([python, join(import.meta.dirname, 'fixtures/lease-time.py'), ...files]);
  await output(witness, /ready/);

  let made = 0;
  let hasRebooted = false;
  let killed = 0;
  const env = withTimeouts({ usage: NOTE_MS });
  const lease = async ({ gpu, of }: (typeof lanes)[number], kind: (typeof KINDS)[number]) => {
    const uid = users[of]?.uid;
    const starting = { env, ...(uid === undefined ? {} : { uid }) };
    const ms = 150 + Math.round(dice.float() * 450);
    if (kind === 'library') {
      made += LEASES_OF_LIBRARY;
      await machine.runScript(
        `for (let i = 0; i < ${LEASES_OF_LIBRARY}; i++) {
           const owner = new GPUOwner({ devices: [${gpu}], placeholder: 'none' });
           await new Promise((resolve) => setTimeout(resolve, ${ms}));
           owner.release();
         }`,
        starting,
      );
      return;
    }
    made++;
    const child = machine.startCommand(
      ['run', '--devices', String(gpu), 'sleep', String(ms / 1000)],
      starting,
    );
    const front = child.pid as number;
    let hasEnded = false;
    const end = finished(child).then(() => {
      hasEnded = true;
    });
    if (kind !== 'run') {
      await until(() => hasEnded || treeOf(front).some((pid) => nameOf(pid) === 'sleep'));
      await pause(dice.float() * ms);
      if (kind === 'all') killed++;
      const named = { keeper: 'gpu-owner-keep', front: 'gpu-owner', all: null }[kind];
      for (const pid of treeOf(front))
        if (named === null || nameOf(pid) === named) sendSignal(pid, 'SIGKILL');
    }
    await end;
  };
  const reboot = () => {
    for (const pid of processesWith(machine.directory)) if (pid !== witness.pid) sendSignal(pid, 'SIGKILL');
    for (const name of readdirSync(machine.lockDirectory))
      if (name !== 'usage') rmSync(join(machine.lockDirectory, name), { force: true });
  };
  await Promise.all(
    lanes.map(async (lane) => {
      for (let i = lane.gpu; made < LEASES; i++) {
        const at = SOAK ? dice.integer(KINDS.length) : i % KINDS.length;
        await lease(lane, KINDS[at] ?? 'run');
        const isTime = SOAK ? dice.float() < 0.01 : made >= LEASES / 2 && !hasRebooted;
        if (isTime) {
          killed += lanes.length;
          reboot();
        }
        hasRebooted ||= isTime;
      }
    }),
  );
  await pause(20);
  witness.stdin?.end();
  const seconds = (await finished(witness)).stdout.trim().split('\n').at(-1)?.split(' ').map(Number) ?? [];

  const hours = async () => {
    const { rows, skipped } = await report();
    return { skipped, of: users.map(({ name }) => rows.find(({ key }) => key === name)?.gpuHours ?? 0) };
  };
  const told = await hours();
  expect(told.skipped).toBe(0);
  const used = told.of.map((sum, i) => (sum - (i === 0 ? (before.rows[0]?.gpuHours ?? 0) : 0)) * 3_600);
  for (const i of users.keys()) {
    const witnessed = seconds.reduce((sum, each, gpu) => sum + (lanes[gpu]?.of === i ? each : 0), 0);
    expect(Math.abs((used[i] ?? 0) - witnessed), `seed ${seed}`).toBeLessThan(
      0.01 * witnessed + LATE_S * killed,
    );
  }

  forge();
  const after = await hours();
  expect(after.of).toEqual(told.of);
  expect(after.skipped).toBeGreaterThanOrEqual(6);
});

async function report(): Promise<Report> {
  const { stdout, stderr } = await machine.runCommand(['report', '--json']);
  expect(stderr).toBe('');
  return JSON.parse(stdout);
}

/** Writes what another user can write there, and what a broken disk does. */
function forge(): void {
  const ledger = join(machine.lockDirectory, 'usage');
  const nobody = readdirSync(ledger).find((name) => name.startsWith(`${NOBODY}-`)) ?? '';
  appendFileSync(
    join(ledger, nobody),
    `garbage\n\0\0\0\n{"since":1,"gpus":[],"held":-1}\n${'x'.repeat(300_000)}\n`,
  );
  const isOf = (uid: number, name: string) => chownSync(join(ledger, name), uid, uid);
  const line = { since: Date.now() - 3_600_000, uid: 0, user: 'root', gpus: [{ index: 0, uuid: 'x' }] };
  writeFileSync(
    join(ledger, '0-2026-01.1.jsonl'),
    `${JSON.stringify({ ...line, held: 1e6, ended: true })}\n`,
  );
  isOf(NOBODY, '0-2026-01.1.jsonl');
  symlinkSync('/dev/zero', join(ledger, '0-2026-02.jsonl'));
  mkdirSync(join(ledger, '0-2026-03.jsonl'));
}
