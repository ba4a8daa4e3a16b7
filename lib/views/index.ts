export { FleetView } from './fleet-view.ts';
export { machineFamilies } from './machine-metrics.ts';
export { MachineView } from './machine-view.ts';

/** Loads the drawing for terminals, which only `top` needs. */
export const loadTop = () => import('./top/top.ts');

/** Loads the web server, which only `web` needs. */
export const loadWeb = () => import('./web/server.ts');
