// A job's address: HOST:JOB, or a number or name of this machine. Read without the code that uses ssh.
import type { JobAddress } from '../fleet/index.ts';
import { JobStore } from '../jobs/index.ts';
import { usageError } from '../platform/index.ts';

/** The address that a word is; null: a number or a name of this machine. @throws ERR_INVALID_ARGUMENT */
export function addressOf(word: string): JobAddress | null {
  const colon = word.lastIndexOf(':');
  if (colon < 0) return null;
  const [host, job] = [word.slice(0, colon), word.slice(colon + 1)];
  if (host === '' || !/^[^\s/-][^\s/]*$/.test(job))
    throw usageError(
      `'${word.slice(0, 60)}' is not a job: give HOST:ID, such as gpu1:17, or a number or a name`,
    );
  return { host, job };
}

/** How many jobs a range on another machine can have, which knows what it has. */
const MAX_RANGE = 1_000;

/**
 * Words for jobs one by one: `1,2` and `4-6` are several, `17_1-3` parts of an array. A host is that of all that follow it:
 * `gpu1:4,5`. @throws ERR_INVALID_ARGUMENT
 */
export function jobWords(words: readonly string[]): string[] {
  return words.flatMap((word) => {
    if (!/[,-]/.test(word)) return [word];
    let host = '';
    const items = word.split(',').filter((item) => item !== '');
    return (items.length === 0 ? [word] : items).flatMap((item) => {
      const job = item.slice(item.lastIndexOf(':') + 1);
      host = item.slice(0, -job.length || undefined) || host;
      const [, array = '', first, last] = /^(\d{1,9}_)?(\d{1,9})-(\d{1,9})$/.exec(job) ?? [];
      if (first === undefined) return [host + job];
      const count = Number(last) - Number(first) + 1;
      if (count < 1 || count > MAX_RANGE)
        throw usageError(`'${item.slice(0, 60)}' is not a range of 1 to ${MAX_RANGE} jobs, such as 4-6`);
      const all = Array.from({ length: count }, (_, i) => array + (Number(first) + i));
      return host === '' && array === '' ? known(all) : all.map((each) => host + each);
    });
  });
}

/** The numbers that are jobs; the first one where none is, for the error. */
function known(numbers: readonly string[]): readonly string[] {
  const store = JobStore.open();
  const found = numbers.filter((number) => store.read(Number(number)) !== null);
  return found.length === 0 ? numbers.slice(0, 1) : found;
}

/** Words for jobs, as {@link jobWords} takes them, and which are of other machines: by host, in the order of the words. */
export function byHost(words: readonly string[]): {
  here: { word: string; at: number }[];
  elsewhere: Map<string, { job: string; at: number }[]>;
} {
  const here: { word: string; at: number }[] = [];
  const elsewhere = new Map<string, { job: string; at: number }[]>();
  for (const [at, word] of jobWords(words).entries()) {
    const address = addressOf(word);
    if (address === null) here.push({ word, at });
    else elsewhere.set(address.host, [...(elsewhere.get(address.host) ?? []), { job: address.job, at }]);
  }
  return { here, elsewhere };
}
