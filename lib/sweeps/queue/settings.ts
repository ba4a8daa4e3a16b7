import type { Pause, Queue, SearchRecord } from './queue.ts';
import { readGPUsPerTask, readPause, readSearch } from './records.ts';

/** Where an engine keeps texts that concern the whole queue. */
export interface SettingStore {
  read(key: string): Promise<string | null>;
  /** Replaces a text by another one; null: by none. The engine may call `next` again. */
  change(key: string, next: (before: string | null) => string | null): Promise<void>;
}

/** The methods of a queue about its pause, the GPUs of its tasks, and its search. */
export function settingMethods(
  store: SettingStore,
): Pick<Queue, 'pause' | 'resume' | 'paused' | 'gpusPerTask' | 'setGPUsPerTask' | 'search' | 'setSearch'> {
  return {
    pause: (by, message) =>
      store.change('pause', (before) => {
        // A person's pause stands, and so does the first message.
        const known = readPause(before)?.by;
        const pause: Pause = { by, message, since: Date.now() };
        return known === 'person' || known === by ? before : JSON.stringify(pause);
      }),
    resume: () => store.change('pause', () => null),
    paused: async () => readPause(await store.read('pause')),
    gpusPerTask: async () => readGPUsPerTask(await store.read('gpus')),
    setGPUsPerTask: (count: number) => store.change('gpus', () => String(count)),
    search: async () => readSearch(await store.read('search')),
    setSearch: (search: SearchRecord) => store.change('search', () => JSON.stringify(search)),
  };
}
