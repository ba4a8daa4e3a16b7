// Variables that lead to the files of another user, as `su -m` and `sudo -E` leave them.
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { launcher, Machine, NOBODY, whyNotNobody } from '../support/machine.ts';

const whyNot = whyNotNobody();

describe.skipIf(whyNot !== null)(`another user's files are ignored with one line ${whyNot ?? ''}`, () => {
  let machine: Machine;
  let home: string;
  let marker: string;
  let place: string;
  beforeEach(() => {
    machine = new Machine(1);
    [home, marker, place] = ['home', 'marker', 'place'].map((name) => join(machine.directory, name)) as [
      string,
      string,
      string,
    ];
    mkdirSync(join(home, '.config/gpu-owner'), { recursive: true });
    writeFileSync(
      join(home, '.config/gpu-owner/config.yaml'),
      `notifyCommand: [touch, ${marker}]\nexclude: [0]\n`,
    );
    for (const each of ['', '.config', '.config/gpu-owner', '.config/gpu-owner/config.yaml'])
      chownSync(join(home, each), NOBODY, NOBODY);
    mkdirSync(place);
    chmodSync(place, 0o1777);
  });
  afterEach(() => machine.close());

  const lines = (stderr: string) => stderr.trim().split('\n');
  /** A job of root, and what its submission says. */
  const submit = async (env: Record<string, string | undefined>) => {
    const { code, stdout, stderr } = await machine.run([launcher, 'submit', '--notify', 'true'], {
      env,
    });
    if (code === 0) await machine.runCommand(['wait', stdout.trim()], { env });
    return { code, said: lines(stderr) };
  };

  test('a HOME: its configuration runs no program, and excludes no GPU', async () => {
    const env = { HOME: home, XDG_CONFIG_HOME: undefined };
    const { code, said } = await submit(env);
    expect(said).toEqual([
      `gpu-owner: warning: HOME=${home} belongs to nobody, not to root, so it is ignored.`,
      expect.stringMatching(/notifyCommand/),
    ]);
    expect(code).toBe(64);
    expect(existsSync(marker)).toBe(false);
    expect(await machine.runCommand(['run', 'true'], { env })).toMatchObject({ code: 0 });
  });

  test('a directory for configuration, and a file in one’s own', async () => {
    const config = join(home, '.config');
    const run = (XDG_CONFIG_HOME: string) =>
      machine.runCommand(['run', 'true'], { env: { XDG_CONFIG_HOME, HOME: place } });
    const ofDirectory = await run(config);
    expect([ofDirectory.code, lines(ofDirectory.stderr)]).toEqual([
      0,
      [
        `gpu-owner: warning: XDG_CONFIG_HOME=${config}: ${config}/gpu-owner belongs to nobody, not to root, so it is ignored.`,
      ],
    ]);
    mkdirSync(join(place, 'gpu-owner'));
    writeFileSync(join(place, 'gpu-owner/config.yaml'), 'exclude: [0]\n');
    chownSync(join(place, 'gpu-owner/config.yaml'), NOBODY, NOBODY);
    const ofFile = await run(place);
    expect(ofFile.code).toBe(0);
    expect(ofFile.stderr).toMatch(
      /place\/gpu-owner\/config\.yaml belongs to nobody, so it is ignored; chown/,
    );
  });

  test.each([
    ['gpu-owner', 'XDG_STATE_HOME'],
    ['.local', 'HOME'],
  ])('a link of theirs, %s, is not followed for jobs', async (name, variable) => {
    const target = join(machine.directory, 'treasure');
    mkdirSync(target);
    expect((await machine.run(['ln', '-s', target, join(place, name)], { uid: NOBODY })).code).toBe(0);
    const own = join(machine.directory, 'own');
    mkdirSync(own);
    const env =
      variable === 'HOME' ? { HOME: place, XDG_STATE_HOME: undefined } : { HOME: own, [variable]: place };
    const { code, stdout, stderr } = await machine.runCommand(['submit', 'true'], { env });
    expect(stderr).toContain(`${variable}=${place}: ${join(place, name)} belongs to nobody, not to root`);
    expect(readdirSync(target)).toEqual([]);
    if (variable === 'HOME') return expect([code, stderr]).toEqual([73, expect.stringMatching(/no place/)]);
    expect(code).toBe(0);
    await machine.runCommand(['wait', stdout.trim()], { env });
    expect(readdirSync(join(own, '.local/state'))).toEqual(['gpu-owner']);
  });

  test('root’s links, and directories of root, are used', async () => {
    symlinkSync(place, join(machine.directory, 'link'));
    const env = {
      HOME: join(machine.directory, 'link'),
      XDG_STATE_HOME: undefined,
      XDG_CONFIG_HOME: undefined,
    };
    expect(await machine.runCommand(['run', 'true'], { env, uid: NOBODY })).toMatchObject({
      code: 0,
      stderr: '',
    });
    expect(await machine.runCommand(['jobs'], { env })).toMatchObject({ code: 0, stderr: '' });
  });
});
