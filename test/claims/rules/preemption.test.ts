import { expect, test } from 'vitest';
import { type PreemptibleLease, whoGivesWay } from '../../../lib/claims/rules/preemption.ts';
import { Random } from '../../support/random.ts';

/** 'a3:01' is the lease a since 3 of the GPUs 0 and 1; 'a3:01!' gives way already, 'a3:01?' hasn't in time. */
function leasesOf(text: string): PreemptibleLease[] {
  return text
    .split(' ')
    .filter(Boolean)
    .map((word) => {
      const [name = '', since = '', ...rest] = word;
      const uuids = rest.filter((letter) => /\d/.test(letter));
      const state = { isEnding: word.endsWith('!'), isOverdue: word.endsWith('?') };
      return { epoch: name.charCodeAt(0), since: Number(since), uuids, ...state };
    });
}
const names = (leases: readonly PreemptibleLease[]) =>
  leases
    .map(({ epoch }) => String.fromCharCode(epoch))
    .sort()
    .join('');

test.each([
  ['the youngest gives way', 1, '0123', 'a1:0 b3:1 c2:2', 'b'],
  ['none, where that would not be enough', 4, '0123', 'a1:0 b3:1 c2:2', ''],
  ['none, where nothing is needed', 0, '0123', 'a1:0', ''],
  ['only leases of GPUs that the request can use', 1, '02', 'a1:0 b3:1 c2:3', 'a'],
  ['an older lease of one GPU before a younger one of two', 1, '0123', 'a1:0 b3:12', 'a'],
  ['one lease of two GPUs before three single ones', 2, '01234', 'a9:0 b8:1 c1:23', 'ab'],
  ['a lease of two where single ones are not enough', 2, '0123', 'a9:0 c1:23', 'c'],
  ['leases that give way already count', 2, '0123', 'a9:0! b8:1 c7:2', 'ab'],
  ['nothing more, where those that give way already are enough', 1, '0123', 'a1:0! b8:1', 'a'],
  ['none that is overdue, where others are enough', 1, '0123', 'a9:0? b1:123', 'b'],
  ['one that is overdue, where others are not enough', 2, '0123', 'a9:0? b1:1 c2:23?', 'ab'],
])('%s', (_, need, usable, leases, expected) => {
  expect(names(whoGivesWay(need, new Set(usable), leasesOf(leases)))).toBe(expected);
});

test('no other choice takes fewer GPUs, or younger leases of the same size in the place of older ones', () => {
  const random = new Random(7);
  for (let round = 0; round < 500; round++) {
    const leases: PreemptibleLease[] = [];
    let gpu = 0;
    while (gpu < 8) {
      const size = 1 + random.integer(3);
      const uuids = Array.from({ length: size }, (_, i) => String(gpu + i));
      gpu += size;
      leases.push({
        epoch: leases.length,
        since: random.integer(100),
        uuids,
        isEnding: false,
        isOverdue: false,
      });
    }
    const usable = new Set(
      Array.from({ length: gpu }, (_, i) => String(i)).filter(() => random.integer(4) > 0),
    );
    const need = 1 + random.integer(5);
    const size = (chosen: readonly PreemptibleLease[]) =>
      chosen.reduce((sum, { uuids }) => sum + uuids.length, 0);
    const gain = (chosen: readonly PreemptibleLease[]) =>
      chosen.reduce((sum, { uuids }) => sum + uuids.filter((uuid) => usable.has(uuid)).length, 0);
    const subsets = Array.from({ length: 2 ** leases.length }, (_, bits) =>
      leases.filter((_, i) => (bits >> i) & 1),
    );
    const enough = subsets.filter((chosen) => gain(chosen) >= need);
    const chosen = whoGivesWay(need, usable, leases);
    if (enough.length === 0) {
      expect(chosen).toEqual([]);
      continue;
    }
    expect(gain(chosen)).toBeGreaterThanOrEqual(need);
    expect(size(chosen)).toBe(Math.min(...enough.map(size)));
    const others = leases.filter((lease) => !chosen.includes(lease));
    const isAlike = (a: PreemptibleLease, b: PreemptibleLease) =>
      size([a]) === size([b]) && gain([a]) === gain([b]);
    for (const kept of others)
      for (const ended of chosen)
        if (isAlike(kept, ended)) expect(kept.since).toBeLessThanOrEqual(ended.since);
  }
});
