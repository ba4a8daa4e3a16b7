// The description of the API, made of the shapes that answers are read by.
import { schema } from '../../platform/index.ts';
import { listOf, or, record, SHAPES, shape, text } from '../../shapes/index.ts';
import { WEB_SHAPES } from './shapes.ts';

type JSONSchema = schema.JSONSchema;

const COMPONENTS = { ...SHAPES, ...WEB_SHAPES };
const ref = (name: string) => shape(name, COMPONENTS[name] as schema.Check);
const TEXT: JSONSchema = { type: 'string' };

const content = (type: string, schema: JSONSchema | undefined) => ({ content: { [type]: { schema } } });
const refusal = (description: string) => ({ description, ...content('application/json', ref('Error').json) });
const response = (name: string) => ({ $ref: `#/components/responses/${name}` });

/** @param mayFail whether the driver or a host can be the reason that there is no answer */
function path(
  operationId: string,
  summary: string,
  answer: { description: string; [key: string]: unknown },
  mayFail: boolean,
  more: JSONSchema = {},
) {
  const { responses = {}, ...rest } = more;
  return {
    get: {
      ...{ operationId, summary, ...rest },
      responses: {
        200: answer,
        ...('security' in more ? {} : { 401: response('Refused') }),
        403: response('Foreign'),
        ...(responses as object),
        ...(mayFail ? { 503: response('Failed') } : {}),
      },
    },
  };
}

const json = (description: string, schema: JSONSchema | undefined) => ({
  description,
  ...content('application/json', schema),
});

/** Entries of this machine, or with `--hosts` of each host. */
function listOrHosts(description: string, item: string, key: string, what: string) {
  const entries = listOf(ref(item));
  const problem = schema.described(or(text), 'why it is not current');
  const byHost = {
    type: 'object',
    description: `${what} of each host, with \`--hosts\`.`,
    additionalProperties: record({ problem, [key]: or(entries) }).json,
  };
  return json(description, { anyOf: [entries.json, byHost] });
}

const PATHS = {
  '/api/v1/gpus': path(
    'getGPUs',
    'All GPUs, as `gpu-owner status --json`',
    listOrHosts('All GPUs.', 'GPU', 'gpus', 'GPUs'),
    true,
  ),
  '/api/v1/queue': path(
    'getQueue',
    'The first 200 requests in the wait queue, as `gpu-owner queue --json`',
    listOrHosts('Requests in their order.', 'Request', 'queue', 'Requests'),
    true,
  ),
  '/api/v1/jobs': path(
    'getJobs',
    "Jobs of the server's user, as `gpu-owner jobs --json`",
    listOrHosts('Jobs.', 'Job', 'jobs', 'Jobs'),
    true,
  ),
  '/api/v1/jobs/{job}/log': path(
    'getLog',
    "The last 256 KiB of a job's output, as `gpu-owner logs`",
    {
      description:
        'What the job has written: escape sequences are in it. An answer that breaks off has no end.',
      ...content('text/plain', TEXT),
    },
    true,
    {
      parameters: [
        {
          ...{ name: 'job', in: 'path', required: true, schema: TEXT },
          description: "the job's number, such as 17; with `--hosts`, after its host: gpu1:17",
        },
        {
          ...{ name: 'follow', in: 'query', schema: { type: 'boolean', default: false } },
          description: 'whether to go on until the job has ended',
        },
      ],
      responses: {
        404: refusal("There is no such job of the server's user, or its output can't be read."),
      },
    },
  ),
  '/api/v1/history': path(
    'getHistory',
    'The last 24 hours of each GPU: means of five minutes',
    json('Utilization, memory and leases.', ref('History').json),
    false,
  ),
  '/api/v1/usage': path(
    'getUsage',
    'The GPU hours of each user on each of the last 30 days; not there with --hosts',
    json('GPU hours, at most a minute old.', ref('Usage').json),
    false,
  ),
  '/api/v1/sweeps': path(
    'getSweeps',
    'Sweeps in the background that compare their tasks: those that run, then the newest, four at most; not with --hosts',
    json('Values of their tasks.', listOf(ref('Sweep')).json),
    false,
  ),
  '/api/v1/topology': path(
    'getTopology',
    'How the GPUs are connected, as `gpu-owner status --topology --json`; not there with --hosts',
    json('Connections, at most a minute old.', ref('Topology').json),
    false,
  ),
  '/api/v1/stream': path(
    'watch',
    'The state of the machine, one line of JSON per snapshot, without end',
    { description: 'Lines.', ...content('application/x-ndjson', ref('StreamLine').json) },
    true,
  ),
  '/api/v1/openapi.json': path(
    'getDescription',
    'This description',
    json('This description.', { type: 'object' }),
    false,
    { security: [] },
  ),
  '/metrics': path(
    'getMetrics',
    'Metrics for Prometheus, as `gpu-owner metrics`',
    { description: 'Metrics.', ...content('text/plain', TEXT) },
    true,
  ),
};

/** OpenAPI 3.1. */
export const DESCRIPTION = {
  openapi: '3.1.0',
  info: {
    title: 'gpu-owner web',
    version: '1',
    description:
      "GPUs of a machine, who has them, and who waits. Read only. Members may be added: ignore those that you don't know.",
  },
  servers: [{ url: '/' }],
  security: [{ token: [] }],
  paths: PATHS,
  components: {
    securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
    responses: {
      Refused: refusal('The token is missing or wrong.'),
      Foreign: refusal('The header Host or Origin is not of this server.'),
      Failed: refusal('The driver or a host fails, or too many watch.'),
    },
    schemas: Object.fromEntries(Object.entries(COMPONENTS).map(([name, { json: shape }]) => [name, shape])),
  },
};
