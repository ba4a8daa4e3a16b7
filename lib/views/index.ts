export { FleetView } from './fleet-view.ts';
export { machineFamilies } from './machine-metrics.ts';
export { MachineView, SORT_KEYS, type SortKey } from './machine-view.ts';

export type { TopOptions } from './top/top.ts';

/** Loads the drawing for terminals, which only `top` needs. */
export const loadTop = () => import('./top/top.ts');

/** Loads the web server, which only `web` needs. */
export const loadWeb = () => import('./web/server.ts');
