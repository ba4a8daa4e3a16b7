// A job's address: HOST:JOB, or a number or name of this machine. Read without the code that uses ssh.
import { isNameHere } from '../jobs/index.ts';
import { usage } from './options.ts';

/** A job of another machine. */
export interface JobAddress {
  host: string;
  /** A number, or a name. */
  job: string;
}

/** The address that a word is; null: a number or a name of this machine. @throws ERR_INVALID_ARGUMENT */
export function addressOf(word: string): JobAddress | null {
  const colon = word.lastIndexOf(':');
  if (colon < 0 || isNameHere(word)) return null;
  const [host, job] = [word.slice(0, colon), word.slice(colon + 1)];
  if (host === '' || !/^[^\s/-][^\s/]*$/.test(job))
    throw usage(`'${word.slice(0, 60)}' is not a job: give HOST:ID, such as gpu1:17, or a number or a name`);
  return { host, job };
}

/** Words for jobs, and which are of other machines: by host, in the order of the words. */
export function byHost(words: readonly string[]): {
  here: { word: string; at: number }[];
  elsewhere: Map<string, { job: string; at: number }[]>;
} {
  const here: { word: string; at: number }[] = [];
  const elsewhere = new Map<string, { job: string; at: number }[]>();
  for (const [at, word] of words.entries()) {
    const address = addressOf(word);
    if (address === null) here.push({ word, at });
    else elsewhere.set(address.host, [...(elsewhere.get(address.host) ?? []), { job: address.job, at }]);
  }
  return { here, elsewhere };
}
