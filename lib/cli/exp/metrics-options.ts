import { type Family, type MetricsServer, parseEndpoint, serveMetrics } from '../../experiments/index.ts';
import type { OptionTable, Values } from '../arguments.ts';

export const METRICS = { metrics: { type: 'string' } } as const satisfies OptionTable;

export const METRICS_HELP = `  --metrics PORT            metrics for Prometheus, for this machine only;
                            HOST:PORT: for others, too`;

/** Serves them if that is asked for; null: it isn't. @param tell says where @throws ERR_INVALID_ARGUMENT */
export async function openMetrics(
  { metrics }: Values,
  families: () => Promise<Family[]> | Family[],
  tell: (text: string) => void,
): Promise<MetricsServer | null> {
  if (metrics === undefined) return null;
  const server = await serveMetrics(await parseEndpoint(String(metrics), '--metrics'), async () =>
    families(),
  );
  tell(`metrics: ${server.url}`);
  return server;
}
