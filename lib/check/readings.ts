import { type GPU, label } from '../gpus/index.ts';
import { TIMEOUTS } from '../platform/index.ts';
import { milliseconds, until } from './context.ts';
import { fail, REPORT_IT, skip } from './finding.ts';
import { checkFields, compareProcesses, timeOfNvidiaSmi } from './nvidia-smi.ts';

/** A kernel that never pauses keeps a GPU busier than this, in percent. */
const MIN_UTILIZATION = 50;
/** Computing takes more power than this share of idle power. */
const MIN_POWER = 1.1;

/**
 * The readings of a GPU on which one process computes without a pause tell that, and are what nvidia-smi says.
 *
 * @param what the finding so far, without a full stop
 */
export async function checkReadings(idle: GPU, look: () => GPU, pid: number, what: string): Promise<string> {
  const isComputing = (idle.utilizationPercent ?? 0) >= MIN_UTILIZATION / 2;
  if (isComputing) skip('other programs computed on the GPU before');
  const isBusy = ({ utilizationPercent: percent }: GPU) => percent === null || percent >= MIN_UTILIZATION;
  const isHot = ({ powerWatts: watts }: GPU) =>
    watts === null || idle.powerWatts === null || watts > idle.powerWatts * MIN_POWER;
  const isLoaded = (gpu: GPU) => isBusy(gpu) && isHot(gpu);
  const hasRisen = await until(() => isLoaded(look()), TIMEOUTS.readings);
  const gpu = look();
  const readings = [
    ...(gpu.utilizationPercent === null ? [] : [`utilization ${gpu.utilizationPercent} %`]),
    ...(gpu.powerWatts === null ? [] : [`${inWatts(gpu)} W (idle: ${inWatts(idle)} W)`]),
    ...(gpu.temperatureCelsius === null ? [] : [`${gpu.temperatureCelsius} °C`]),
  ];
  if (readings.length === 0) skip('the driver tells neither utilization nor power nor temperature');
  const text = `${what} on GPU ${label(gpu)}: ${readings.join(', ')}`;
  if (!hasRisen) {
    fail(
      `${text}: a reading has not risen within ${milliseconds(TIMEOUTS.readings)}.`,
      `Do not rely on idle times of this GPU. ${REPORT_IT}`,
    );
  }
  if (gpu.instance !== null) return `${text}.`;
  if ((await timeOfNvidiaSmi()) === null) return `${text}. There is no nvidia-smi to compare with.`;
  const fields = await checkFields([gpu]);
  const processes = await compareProcesses(() => [look()], pid);
  return `${text}. ${fields} ${processes}`;
}

function inWatts({ powerWatts }: GPU): string {
  return powerWatts === null ? 'unknown' : powerWatts.toFixed(0);
}
