import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Session, Simulated } from '../support/simulated.ts';

// Plain GPUs by their UUIDs; fixtures/cuda.py leaves out the prefix.
const uuid = (index: number) => `00000000-0000-4000-8000-00000000000${index}`;
const gpu = (index: number) => `GPU-${uuid(index)}`;
const NO_DEVICE = -100;

function python(list: string | undefined, order?: string): string {
  const literal = (text: string | undefined) => (text === undefined ? 'None' : JSON.stringify(text));
  return `cuda.visible(${literal(list)}, ${literal(order)})`;
}

describe('equal GPUs', () => {
  const machine = new Simulated(4);
  let session: Session;
  beforeAll(() => {
    session = machine.session();
  });
  afterAll(() => machine[Symbol.dispose]());

  test.each<[string, string | undefined, number[] | number]>([
    ['unset: all', undefined, [0, 1, 2, 3]],
    ['empty: none', '', NO_DEVICE],
    ['one', '2', [2]],
    ['in the given order', '3,0', [3, 0]],
    ['spaces around', ' 1 , 2 ', [1, 2]],
    ['the list ends at the first invalid entry', '1,7,2', [1]],
    ['-1 is the usual way to say none', '-1', NO_DEVICE],
    ['and an end', '0,-1,1', [0]],
    ['an empty entry is invalid', '0,,1', [0]],
    ['words are', 'none', NO_DEVICE],
    ['a number with something after it is', '1x', NO_DEVICE],
    ['duplicates give none', '1,1', NO_DEVICE],
    ['by whatever name', `1,${gpu(1)}`, NO_DEVICE],
    ['after the end they do not count', '1,9,1', [1]],
    ['UUIDs', `${gpu(3)},${gpu(1)}`, [3, 1]],
    ['a beginning that several have is invalid', 'GPU-00000000', NO_DEVICE],
    ['so is one that none has', 'GPU-1', NO_DEVICE],
    ['and no beginning at all', 'GPU-', NO_DEVICE],
    ['an unknown MIG instance is', 'MIG-00000000-0000-4000-8000-000000000000', NO_DEVICE],
    ['a trailing comma', '0,1,', [0, 1]],
  ])('%s: %j', async (_, list, expected) => {
    expect(await session.do(python(list))).toEqual(
      Array.isArray(expected) ? expected.map((i) => `-${uuid(i)}`) : expected,
    );
  });

  test('NVML ignores the variable', async () => {
    using other = new Simulated(3);
    const watcher = other.session({ environment: { CUDA_VISIBLE_DEVICES: '1' } });
    expect(await watcher.do('nvml.init() or nvml.count()')).toBe(3);
    expect(await watcher.do('[cuda.init(), cuda.count(), cuda.use(0)]')).toEqual([0, 1, 0]);
    expect(await watcher.do('[nvml.pids(0), nvml.pids(1)]')).toEqual([[], [watcher.pid]]);
  });

  test('the first cuInit fixes the list', async () => {
    const first = machine.session({ environment: { CUDA_VISIBLE_DEVICES: '1,2' } });
    expect(await first.do('cuda.count()')).toBe(-3);
    // Read when cuInit is called, not when the library is loaded.
    await first.do('os.environ.update(CUDA_VISIBLE_DEVICES="3,2,1")');
    expect(await first.do('[cuda.init(), cuda.count()]')).toEqual([0, 3]);
    await first.do('os.environ.update(CUDA_VISIBLE_DEVICES="0")');
    expect(await first.do('[cuda.init(), cuda.count(), cuda.uuid(0), cuda.bus(2)]')).toEqual([
      0,
      3,
      gpu(3),
      '0000:02:00.0',
    ]);
    expect(await first.do('[cuda.device(2), cuda.device(3)[0], cuda.device(-1)[0]]')).toEqual([
      [0, 2],
      101,
      101,
    ]);
    expect(await first.do('[cuda.retain(3)[0], cuda.release(3), cuda.total(3)[0]]')).toEqual([101, 101, 101]);
  });

  test('the first cuInit fixes the list also when it found no device', async () => {
    const none = machine.session({ environment: { CUDA_VISIBLE_DEVICES: '' } });
    expect(await none.do('[cuda.init(), cuda.count()]')).toEqual([100, -3]);
    await none.do('os.environ.update(CUDA_VISIBLE_DEVICES="0")');
    expect(await none.do('[cuda.init(), cuda.count()]')).toEqual([100, -3]);
  });
});

test('a GPU that cannot be used is not numbered', async () => {
  using machine = new Simulated(3);
  const session = machine.session();
  machine.set('gpu=1', 'lost=on');
  expect(await session.do(python(undefined))).toEqual([`-${uuid(0)}`, `-${uuid(2)}`]);
  expect(await session.do(python('1'))).toEqual([`-${uuid(2)}`]);
  expect(await session.do(python(gpu(1)))).toBe(NO_DEVICE);
});

test('different GPUs are numbered fastest first, or in PCI order', async () => {
  using machine = new Simulated('mixed');
  const uuids = machine.show().gpus.map((each: { uuid: string }) => each.uuid.replace('GPU', ''));
  const session = machine.session();
  const pick = (...indices: number[]) => indices.map((i) => uuids[i]);
  expect(await session.do(python(undefined))).toEqual(pick(1, 2, 0));
  expect(await session.do(python(undefined, 'FASTEST_FIRST'))).toEqual(pick(1, 2, 0));
  expect(await session.do(python(undefined, 'PCI_BUS_ID'))).toEqual(pick(0, 1, 2));
  expect(await session.do(python('0'))).toEqual(pick(1));
  expect(await session.do(python('0,2', 'PCI_BUS_ID'))).toEqual(pick(0, 2));
  // These differ from the first digits on.
  expect(await session.do(python(`GPU${uuids[2].slice(0, 6)}`))).toEqual(pick(2));
});

test('MIG before R570 shows one instance at most, and no whole GPU beside it', async () => {
  using machine = new Simulated('early-r535');
  machine.set('gpu=0,1', 'mig=on');
  const { gpus } = machine.show();
  const session = machine.session();
  const [first, second] = gpus[0].migInstances;
  const suffix = (instance: { uuid: string }) => instance.uuid.replace(/^[A-Z]+/, '');
  expect(await session.do(python(undefined))).toEqual([suffix(first)]);
  expect(await session.do(python('0'))).toEqual([suffix(first)]);
  expect(await session.do(python('1'))).toEqual([suffix(gpus[1].migInstances[0])]);
  expect(await session.do(python('3,2'))).toEqual([suffix(gpus[3]), suffix(gpus[2])]);
  expect(await session.do(python('2,0'))).toEqual([suffix(first)]);
  expect(await session.do(python(second.uuid))).toEqual([suffix(second)]);
  expect(await session.do(python(`${second.uuid},${first.uuid}`))).toEqual([suffix(second)]);
  expect(await session.do(python(second.uuid.slice(0, 20)))).toBe(NO_DEVICE);
  const { gpuInstanceId, computeInstanceId } = second;
  const older = `MIG-${gpus[0].uuid}/${gpuInstanceId}/${computeInstanceId}`;
  expect(await session.do(python(older))).toEqual([suffix(second)]);
  expect(await session.do(python(`MIG-${gpus[0].uuid}/99/0`))).toBe(NO_DEVICE);
  expect(await session.do(python(`MIG-${gpus[0].uuid}/${gpuInstanceId}`))).toBe(NO_DEVICE);
  // GPU- and MIG- do not mix: the list ends there.
  expect(await session.do(python(`${gpus[2].uuid},${first.uuid}`))).toEqual([suffix(gpus[2])]);
  expect(await session.do(python(`${first.uuid},${gpus[2].uuid}`))).toEqual([suffix(first)]);
});

test('MIG since R570 shows several instances in one process, and whole GPUs beside them', async () => {
  using machine = new Simulated('a100x4-mig');
  const { gpus } = machine.show();
  const session = machine.session();
  const suffix = (instance: { uuid: string }) => instance.uuid.replace(/^[A-Z]+/, '');
  const [first, second] = gpus[0].migInstances;
  expect(await session.do(python(undefined))).toEqual(
    [...gpus[0].migInstances, ...gpus[1].migInstances, gpus[2], gpus[3]].map(suffix),
  );
  expect(await session.do(python(`${second.uuid},${first.uuid}`))).toEqual([suffix(second), suffix(first)]);
  expect(await session.do(python('2,0'))).toEqual([suffix(gpus[2]), suffix(first)]);
  // In one list, the two ways of naming do not mix.
  expect(await session.do(python(`${first.uuid},${gpus[2].uuid}`))).toEqual([suffix(first)]);
});
