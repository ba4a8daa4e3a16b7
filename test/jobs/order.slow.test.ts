import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { readActivity } from '../../lib/status/index.ts';
import { startHolder } from '../support/holders.ts';
import { Machine, until } from '../support/machine.ts';
import { nameOf } from '../support/processes.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const command = async (...args: string[]) => {
  const { code, stdout, stderr } = await machine.runCommand(args);
  if (code !== 0) throw new Error(`${code}: ${stderr}`);
  return stdout;
};
const queue = () =>
  readActivity(machine.lockDirectory).waiting.map(({ info, isSuspended }) => ({ ...info, isSuspended }));
const order = () => queue().map(({ job }) => job);

async function submit(...names: string[]) {
  for (const name of names)
    await command(
      'submit',
      '--placeholder',
      'none',
      '--name',
      name,
      '--',
      'sh',
      '-c',
      `echo ${name} >> ${machine.directory}/order`,
    );
  await until(() => queue().length === names.length);
}

const served = () => readFileSync(`${machine.directory}/order`, 'utf8').trim().split('\n');
const ended = () => command('wait', '1', '2', '3', '4');

test('waiting jobs can be put before one’s other ones, also while they wait as small processes', async () => {
  const first = await startHolder(machine);
  await submit('a', 'b', 'c', 'd');
  expect(order()).toEqual([1, 2, 3, 4]);
  await until(() => queue().filter(({ pid }) => nameOf(pid ?? 0) === 'gpu-owner-wait').length >= 3);
  await command('queue', '--first', 'd', '2');
  expect(order()).toEqual([4, 2, 1, 3]);
  first.stdin?.end();
  await ended();
  expect(served()).toEqual(['d', 'b', 'a', 'c']);
});

test('a paused job is skipped, and keeps its place', async () => {
  const first = await startHolder(machine);
  await submit('a', 'b', 'c', 'd');
  await command('queue', '--pause', 'a', 'b');
  await until(() => queue().filter((each) => each.isSuspended).length === 2);
  first.stdin?.end();
  await command('wait', '3', '4');
  expect(served()).toEqual(['c', 'd']);
  const second = await startHolder(machine);
  expect(order()).toEqual([1, 2]);
  await command('queue', '--resume', '2', '1');
  await until(() => queue().every((each) => !each.isSuspended));
  second.stdin?.end();
  await ended();
  expect(served()).toEqual(['c', 'd', 'a', 'b']);
});

test('what can’t be changed is refused, with the remedy', async () => {
  const refusal = async (...args: string[]) => {
    const { code, stderr } = await machine.runCommand(['queue', ...args]);
    expect(code).not.toBe(0);
    return stderr;
  };
  await command('submit', '--', 'true');
  await command('wait', '1');
  expect(await refusal('--pause', '1')).toMatch(/job 1 doesn't wait; `gpu-owner jobs 1` says/);
  expect(await refusal('--first')).toMatch(/--first: which job\? Give its number or name/);
  expect(await refusal('--first', '--pause', '1')).toMatch(/can't go together/);
  expect(await refusal('--resume', '9')).toMatch(/no job/);
  expect(await refusal('1')).toMatch(/not expected here/);
});
