import { expect, test } from 'vitest';
import { because } from '../support/driver-library.ts';
import { output } from '../support/machine.ts';
import { noStuckCalls, StuckMachine, untilStuckAtItsEnd } from '../support/stuck-machine.ts';

test.skipIf(noStuckCalls !== null)(
  `a killed process whose driver call is stuck: it is named, with what it keeps${because(noStuckCalls)}`,
  async (context) => {
    const machine = await StuckMachine.make(context);
    const child = machine.start([
      process.execPath,
      '--input-type=module',
      '-e',
      machine.script(`
        import { writeFileSync } from 'node:fs';
        new GPUOwner({ devices: [1], placeholder: 'none' });
        writeFileSync(process.env.STUCK_WHILE, '');
        await gpuOwner.getGPUs();
        console.log('given up');
        setInterval(() => {}, 1000);`),
    ]);
    await output(child, /given up/);
    const findings = async () => {
      const { stdout } = await machine.runCommand(['doctor', '--json']);
      return JSON.parse(stdout).filter(({ id }: { id: string }) => id === 'process-stuck');
    };
    expect(await findings()).toEqual([]); // the process lives
    child.kill('SIGKILL');
    await untilStuckAtItsEnd(child);
    const [finding] = await findings();
    expect(finding?.text).toMatch(new RegExp(`^node \\(pid ${child.pid}, .*keeps GPU-\\S+\\.lease locked`));
    await machine.letGo();
    expect(await findings()).toEqual([]);
  },
);
