import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { isWSL, whichContainer } from '../gpus/index.ts';
import { native, packageRoot } from '../native.ts';
import { ownPackage } from '../platform/index.ts';
import type { Report } from './finding.ts';

/** Checks gpu-owner itself, and where it runs. */
export function checkInstallation(report: Report): void {
  report.add(
    'version',
    `gpu-owner ${ownPackage().version} in ${packageRoot}, Node.js ${process.versions.node} (${process.execPath}), ${process.platform} on ${process.arch}${surroundings()}.`,
  );
  const simulated = simulatedMachine();
  if (simulated !== null) {
    report.add(
      'simulated',
      `The GPUs are simulated: machine '${simulated}', whose state is in ${simulationDirectory(simulated)}. The findings are not about real GPUs.`,
      'To check the real GPUs: `unset GPU_OWNER_SIMULATE`, and leave out `--simulate`.',
    );
  }
  native(); // the missing native part has an error of its own
}

/** What isn't an ordinary machine, in words. */
function surroundings(): string {
  const container = whichContainer();
  return `${container === null ? '' : `, in a container (${container})`}${isWSL() ? ', under WSL' : ''}`;
}
