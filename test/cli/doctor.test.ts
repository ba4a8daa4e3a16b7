import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CATALOGUE, type Finding, type FindingId, finding } from '../../lib/check/finding.ts';
import { Page } from '../../lib/check/index.ts';
import { doctorPage } from '../../lib/cli/doctor.ts';
import { launcher, Machine } from '../support/machine.ts';

describe('gpu-owner doctor', () => {
  let machine: Machine;
  beforeEach(() => {
    machine = new Machine(2);
  });
  afterEach(() => machine.close());

  test('--json prints an array of findings, each with the same five members', async () => {
    const { code, stdout, stderr } = await machine.run([launcher, 'doctor', '--json']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const findings = JSON.parse(stdout) as Finding[];
    expect(findings.length).toBeGreaterThan(5);
    for (const found of findings) {
      expect(Object.keys(found)).toEqual(['id', 'level', 'subject', 'text', 'remedy']);
      expect(Object.keys(CATALOGUE)).toContain(found.id);
      expect(['ok', 'note', 'warning', 'problem']).toContain(found.level);
      expect(['installation', 'configuration', 'lock-directory', 'gpus']).toContain(found.subject);
      expect(found.text).toMatch(/\S/);
      if (found.level === 'problem' || found.level === 'warning') expect(found.remedy).toMatch(/\S/);
    }
  });

  test('the exit code is 0 without problems, 1 with one, and 64 for wrong usage', async () => {
    expect((await machine.runCommand(['doctor'])).code).toBe(0);
    machine.set('gpu=0', 'memory-repair=pending');
    const warned = await machine.runCommand(['doctor']);
    expect(warned.code).toBe(0);
    expect(warned.stdout).toMatch(/\n {2}warning {2}GPU 0 .*: spare memory takes the place/);
    machine.set('gpu=1', 'lost=on');
    const failed = await machine.runCommand(['doctor']);
    expect(failed.code).toBe(1);
    expect(failed.stdout).toMatch(/\n {2}gpu-unusable: GPU 1: the GPU has fallen off the bus/);
    const wrong = await machine.runCommand(['doctor', 'nothing']);
    expect(wrong).toMatchObject({ code: 64, stdout: '', stderr: expect.stringMatching(/^gpu-owner: /) });
  });

  test('the doctor ends quietly when its reader goes away', async () => {
    const { code, stderr } = await machine.run(['sh', '-c', `${launcher} doctor | head -c 1 >/dev/null`]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  });
});

describe('the page of the doctor', () => {
  const long = 'word '.repeat(40).trim();
  const findings = [
    finding('version', 'ok', 'installation', 'gpu-owner 1.'),
    finding(
      'gpu-unusable',
      'problem',
      'gpus',
      `GPU 0 is lost: ${long}`,
      `Reboot, after \`dmesg | grep -i nvrm\`, ${long}`,
    ),
    finding('cuda', 'ok', 'gpus', 'CUDA starts on GPU 1.'),
  ];

  test.each([50, 80, 100, 1_000])('the page fits %i columns', (width) => {
    const lines = doctorPage(findings, new Page(width, false)).split('\n');
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(Math.min(width, 110));
    expect(lines[0]).toBe('Installation');
    expect(lines[1]).toBe('  ok       gpu-owner 1.');
    expect(lines).toContain('Driver and GPUs');
    // Aligned below the text, what to do below that, and the command in one piece.
    expect(lines.find((line) => line.includes('->'))).toMatch(/^ {11}-> Reboot/);
    expect(lines.some((line) => line.includes('`dmesg | grep -i nvrm`'))).toBe(true);
    expect(lines.join('\n')).toContain('[gpu-unusable]');
    expect(lines[lines.length - 2]).toBe('1 problem. The problem in short:');
    expect(lines[lines.length - 1]).toMatch(/^ {2}gpu-unusable: GPU 0 is lost: word/);
  });

  test('the page ends with a summary', () => {
    const conclusion = (...ids: FindingId[]) =>
      doctorPage(
        ids.map((id) => finding(id, CATALOGUE[id], 'gpus', 'It is so.')),
        new Page(80, false),
      )
        .split('\n\n')
        .pop();
    expect(conclusion('gpus', 'cuda')).toBe('All is well.');
    expect(conclusion('gpus', 'persistence-off')).toBe('No problem; 1 note.');
    expect(conclusion('persistence-off', 'enforce-not-running', 'memory-repair-pending')).toBe(
      'No problem; 2 warnings and 1 note.',
    );
    expect(conclusion('gpu-unusable', 'cuda-failed', 'persistence-off')).toBe(
      '2 problems and 1 note. The problems in short:\n  gpu-unusable: It is so.\n  cuda-failed: It is so.',
    );
  });
});
