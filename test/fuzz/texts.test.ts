// Texts of one line that people and other programs write: quantities, addresses, names of GPUs, environment variables, lines of
// /proc.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect } from 'vitest';
import { parseConventions } from '../../lib/config/convention-choice.ts';
import { CRITERIA_KEYS, normalizeCriteria, parseSelectors } from '../../lib/config/criteria.ts';
import { mountPointOf } from '../../lib/gpus/containers.ts';
import { matchesName } from '../../lib/gpus/selection.ts';
import type { GPU } from '../../lib/gpus/types.ts';
import { formatVisibleDevices, resolveVisibleDevices } from '../../lib/gpus/visible-devices.ts';
import { parseInherited } from '../../lib/jobs/inherited.ts';
import { describeProcess, nameIn } from '../../lib/platform/processes.ts';
import {
  formatBytes,
  formatDuration,
  formatSince,
  parseCelsius,
  parseDuration,
  parsePercent,
  parseSize,
  parseWatts,
} from '../../lib/platform/quantities.ts';
import { closest, sanitize, shellWords, showValue } from '../../lib/platform/text.ts';
import { splitShellWords } from '../../lib/sweeps/files/command.ts';
import { parseAddresses } from '../../lib/sweeps/protocol/access.ts';
import { parseAddress } from '../../lib/sweeps/queue/bullmq/address.ts';
import { withoutPassword } from '../../lib/sweeps/queue/index.ts';
import { expectPrintable, fuzz, jsonValue, mutated, orRefusal, text } from './fuzz.ts';

const anyText = fc.oneof(text(), fc.string({ unit: 'binary', maxLength: 40 }), fc.string({ maxLength: 40 }));

fuzz(
  'text of others is made harmless, short, and the same when done again',
  fc.tuple(anyText, fc.nat(30)),
  ([written, most]) => {
    const clean = sanitize(written, most + 1);
    expectPrintable(clean);
    expect(Array.from(clean).length).toBeLessThanOrEqual(most + 1);
    expect(sanitize(clean, most + 1)).toBe(clean);
    expectPrintable(showValue(written));
    closest(written, ['devices', 'exclude']);
  },
);

const quantities = ['20GiB', '1.5 GB', '512', '1h30m', '250ms', '5%', '80W', '60°C', '0', '1e3'];
const quantity = fc.oneof(mutated(fc.constantFrom(...quantities), quantities), jsonValue);

fuzz('a quantity is a number that is not negative, or refused', quantity, (value) => {
  for (const parse of [parseSize, parseDuration, parsePercent, parseWatts, parseCelsius]) {
    const found = orRefusal(() => parse(value));
    if (!(found instanceof Error)) expect(found >= 0 && Number.isFinite(found)).toBe(true);
  }
});

fuzz(
  'quantities of all sizes are shown',
  fc.oneof(fc.double(), fc.integer(), fc.maxSafeInteger()),
  (number) => {
    expectPrintable(formatBytes(number) + formatDuration(number) + (formatSince(number) ?? ''));
    if (Number.isSafeInteger(number) && number >= 0) {
      expect(parseSize(`${number}B`)).toBe(number + 0); // -0 is 0
      expect(parseDuration(`${number}ms`)).toBe(number + 0);
    }
  },
);

function gpu(index: number, uuid: string, name: string, instances: string[] = []): GPU {
  const memory = { totalBytes: null, usedBytes: null, freeBytes: null };
  const migInstances = instances.map((each, i) => ({
    uuid: each,
    name: '',
    gpuInstanceId: i,
    computeInstanceId: 0,
    memory,
  }));
  return {
    index,
    instance: null,
    uuid,
    name,
    health: uuid === '' ? 'no-permission' : 'ok',
    migInstances,
  } as unknown as GPU;
}
const machine = [
  gpu(0, 'GPU-11111111-1', 'A'),
  gpu(1, 'GPU-11111111-2', 'B'),
  gpu(2, 'GPU-2', 'A', ['MIG-1', 'MIG-22']),
  gpu(3, '', ''),
];
const all = ['GPU-11111111-1', 'GPU-11111111-2', 'GPU-2', 'MIG-1', 'MIG-22'];
const visible = ['0', '1', '2', ',', '-1', 'NoDevFiles', 'MIG-GPU-2/1/0', 'GPU-1', ...all];

fuzz(
  'CUDA_VISIBLE_DEVICES shows GPUs of the machine, each once',
  fc.tuple(text(visible), fc.constantFrom(undefined, 'PCI_BUS_ID', 'FASTEST_FIRST'), fc.boolean()),
  ([value, order, knows]) => {
    const fastest = knows ? () => all.slice(0, 3).toReversed() : undefined;
    const { uuids, migUuids, note } = resolveVisibleDevices(value, order, machine, fastest);
    expectPrintable(note ?? '');
    const found = [...(uuids ?? []), ...migUuids];
    expect(new Set(found).size).toBe(found.length);
    for (const uuid of found) expect(all).toContain(uuid);
  },
);

fuzz(
  'GPUs that are shown to CUDA are what it reads',
  fc.subarray(machine.slice(0, 3), { minLength: 1 }),
  (some) => {
    for (const as of ['uuid', 'index'] as const) {
      const variables = formatVisibleDevices(some, as, machine);
      const { uuids } = resolveVisibleDevices(
        variables.CUDA_VISIBLE_DEVICES,
        variables.CUDA_DEVICE_ORDER,
        machine,
      );
      expect(uuids).toEqual(some.map(({ uuid }) => uuid));
    }
  },
);

const selectors = ['0', '1-3', '0:2', 'GPU-1', 'MIG-1', 'MIG-GPU-2/1/0', 'RTX*', '*', '?', ','];

fuzz('selectors and conventions are read or refused', fc.oneof(text(selectors), jsonValue), (value) => {
  orRefusal(() => parseSelectors(value, 'devices'));
  orRefusal(() => parseConventions(value, 'conventions'));
  if (typeof value === 'string') matchesName(value, 'NVIDIA GeForce RTX 4090');
});

fuzz(
  'a name pattern of stars is matched without trying all ways',
  fc.tuple(fc.array(fc.constantFrom('*', 'a', 'b', '**a'), { maxLength: 60 }), fc.nat(200)),
  ([pieces, length]) => {
    matchesName(pieces.join(''), 'a'.repeat(length));
  },
);

fuzz(
  'criteria are read or refused',
  fc.oneof(
    jsonValue,
    fc.dictionary(
      fc.constantFrom<string>(...CRITERIA_KEYS),
      fc.oneof(jsonValue, text([...selectors, ...quantities])),
    ),
  ),
  (criteria) => {
    orRefusal(() => normalizeCriteria(criteria));
  },
);

const addresses = [
  'redis://user:s3cret@host:6379/1?project=a&patience=5',
  'rediss://[::1]:6380?db=3&margin=1.5',
  'redis+unix:///run/redis/redis.sock?db=2',
];

fuzz(
  'the address of a queue is read or refused, and no message has its password',
  mutated(fc.constantFrom(...addresses)),
  (address) => {
    const found = orRefusal(() => parseAddress(address, '/home/alice/project'));
    const message = found instanceof Error ? found.message : found.url;
    expectPrintable(message);
    const intact = address.includes(':s3cret@');
    if (intact) expect(message).not.toContain('s3cret');
    if (intact && address.startsWith('redis://user:s3cret@'))
      expect(withoutPassword(address)).not.toContain('s3cret@');
  },
);

fuzz(
  'addresses are read or refused',
  mutated(fc.constantFrom('10.0.0.1', '::1', 'fe80::1%eth0,192.168.0.1', '::ffff:1.2.3.4')),
  (address) => {
    orRefusal(() => parseAddresses([address], '--trust'));
  },
);

fuzz(
  'what the launcher notes is read as far as it is of its form',
  mutated(fc.constant('sigign=0000000000000001 nofile=1024 fds=3,4 dropped=1')),
  (note) => {
    const { descriptors, dropped } = parseInherited(note);
    for (const descriptor of descriptors) expect(descriptor).toBeLessThan(2 ** 31);
    expect(Number.isSafeInteger(dropped)).toBe(true);
  },
);

fuzz(
  'words that are quoted for a shell are the same words',
  fc.array(
    anyText.filter((word) => !word.includes('\0')),
    { maxLength: 5 },
  ),
  (words) => {
    const shown = shellWords(words);
    const refuse = (why: string) => new Error(why);
    expect(splitShellWords(shown, refuse)).toEqual(words);
  },
);

fuzz(
  'command lines are split or refused',
  text(["'", '"', '\\', '$(', '${', '$x', '~', ' #', 'a']),
  (line) => {
    class Refusal extends Error {}
    orRefusal(
      () => splitShellWords(line, (why) => new Refusal(why)),
      (error) => error instanceof Refusal,
    );
  },
);

const passwd = 'root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n+nis:::\n';
fuzz(
  'names of users in /etc/passwd are harmless to print',
  fc.tuple(mutated(fc.constant(passwd)), fc.constantFrom(0, 1000, 7)),
  ([table, uid]) => {
    expectPrintable(nameIn(table, uid) ?? '');
  },
);

const mounts =
  '22 1 0:20 / / rw - ext4 /dev/a rw\n23 22 0:21 / /mnt/a\\040b rw - tmpfs none rw\n24 22 0:22 / /mnt rw - nfs h:/x rw\n';
fuzz('a mount point is found in any table', mutated(fc.constant(mounts)), (table) => {
  expect(`${mountPointOf('/mnt/a b/c', table)}`.startsWith('/')).toBe(true);
});

const proc = mkdtempSync(join(tmpdir(), 'gpu-owner-proc-'));
afterAll(() => rmSync(proc, { recursive: true }));
mkdirSync(join(proc, '1/task/2'), { recursive: true });
const stat = '1 (python) S 0 1 1 0 -1 4194560 100 0 0 0 1 1 0 0 20 0 2 0 100 1000 10';
const status =
  'Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCoreDumping:\t0\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n';

fuzz(
  'a process is described, whatever /proc says of it',
  fc.tuple(
    mutated(fc.constant(stat), ['MainThread', ')', '(', 'Z']),
    mutated(fc.constant(status)),
    text(),
    mutated(fc.constant(stat)),
  ),
  ([itsStat, itsStatus, commandLine, threadStat]) => {
    writeFileSync(join(proc, '1/stat'), itsStat);
    writeFileSync(join(proc, '1/status'), itsStatus);
    writeFileSync(join(proc, '1/cmdline'), commandLine);
    writeFileSync(join(proc, '1/task/2/stat'), threadStat);
    const { name, user, uid, alive } = describeProcess(1, proc);
    expectPrintable(`${name} ${user} ${uid}`);
    expect(['alive', 'dying', 'gone']).toContain(alive);
  },
);
