// The description of the API, made of the shapes that answers are read by.
import type { schema } from '../../platform/index.ts';
import { SHAPES } from '../../shapes/index.ts';

type JSONSchema = schema.JSONSchema;
type Properties = Record<string, JSONSchema>;

const ref = (name: string): JSONSchema => ({ $ref: `#/components/schemas/${name}` });
const list = (items: JSONSchema, more: JSONSchema = {}): JSONSchema => ({ type: 'array', items, ...more });
/** An object that has all of these members. */
const object = (properties: Properties, more: JSONSchema = {}): JSONSchema => ({
  type: 'object',
  required: Object.keys(properties),
  properties,
  ...more,
});
const value = (type: string, description?: string, more: JSONSchema = {}): JSONSchema => ({
  type,
  ...(description === undefined ? {} : { description }),
  ...more,
});
const orNull = (schema: JSONSchema): JSONSchema => ({ anyOf: [schema, { type: 'null' }] });
const moment = (description: string) => value('string', description, { format: 'date-time' });
const text = value('string');
const integer = value('integer');
const percentages = (description?: string) =>
  list(
    { type: ['integer', 'null'], minimum: 0, maximum: 100 },
    description === undefined ? {} : { description },
  );
const CLOSED = { additionalProperties: false };
const PROBLEM = { type: ['string', 'null'], description: 'why it is not current' };
const TRIAL = value('integer', 'from 1, in the order in which they ended');
const AT_MOST = { maxItems: 500 };

/** Objects that only the web server tells. */
const OWN: Properties = {
  StreamLine: object(
    {
      time: moment('when it was sent'),
      intervalSeconds: value('number', 'how often a snapshot is taken'),
      user: value('string', "whose jobs are among them: the server's user"),
      machines: list(
        object({
          host: text,
          isLocal: value('boolean', "whether it is the server's own, without `--hosts`"),
          problem: { ...PROBLEM, description: 'why the snapshot is not current' },
          snapshot: orNull(ref('Snapshot')),
          jobs: list(ref('Job')),
        }),
      ),
    },
    { description: 'A line of the stream: everything, not only what has changed.' },
  ),
  Error: object(
    {
      error: object({
        code: value(
          'string',
          'foreign-host, foreign-origin, wrong-token, read-only, not-found, too-many-viewers, internal, or a code of gpu-owner such as ERR_NO_DRIVER',
        ),
        message: text,
      }),
    },
    { description: 'Why there is no answer.' },
  ),
  Usage: object(
    {
      days: list(value('string', undefined, { format: 'date' }), {
        description: "in the server's time zone; the last one lasts still",
      }),
      users: list(
        object(
          {
            user: text,
            uid: integer,
            gpuHours: list({ type: 'number', minimum: 0 }, { description: 'for each day' }),
          },
          CLOSED,
        ),
        {
          description: 'who used GPUs, the largest sum first; none where the machine has no ledger of usage',
        },
      ),
    },
    { description: 'The last 30 days.', ...CLOSED },
  ),
  History: object(
    {
      time: moment('now; the last slot lasts still'),
      slotSeconds: value('number', 'how long each slot is'),
      machines: list(
        object({
          host: text,
          gpus: list(
            object(
              {
                uuid: text,
                index: integer,
                instance: { type: ['integer', 'null'] },
                name: text,
                spanSeconds: value('integer', 'since the first snapshot, at most 24 hours', {
                  minimum: 0,
                  maximum: 86_400,
                }),
                leasedSeconds: value(
                  'integer',
                  'the part of spanSeconds in which it was leased, as far as known',
                  { minimum: 0 },
                ),
                utilizationPercent: percentages(),
                memoryPercent: percentages(),
                leasedPercent: percentages('share of the snapshots in which it was leased'),
              },
              { description: 'A GPU; 288 slots each, from the oldest. null: unknown.' },
            ),
          ),
        }),
      ),
    },
    { description: 'The last 24 hours.' },
  ),
  Sweep: object(
    {
      job: integer,
      name: { type: ['string', 'null'] },
      state: value('string', undefined, {
        enum: ['waiting', 'running', 'completed', 'failed', 'cancelled', 'lost'],
      }),
      metric: text,
      goal: { enum: ['minimize', 'maximize'] },
      count: value('integer', 'tasks that have ended with a value'),
      best: { type: ['string', 'null'], description: 'the best one, in words; null: none has a value yet' },
      points: list(
        object(
          {
            trial: TRIAL,
            value: value('number'),
            stopped: value('boolean', 'it was stopped early'),
            parameters: value('string', "the task's name and parameters, in words"),
          },
          CLOSED,
        ),
        { ...AT_MOST, description: 'tasks; of more than 500, some that are spread evenly' },
      ),
      records: list(object({ trial: TRIAL, value: value('number') }, CLOSED), {
        ...AT_MOST,
        description: 'tasks that were better than all before them',
      }),
    },
    CLOSED,
  ),
};

const content = (type: string, schema: JSONSchema) => ({ content: { [type]: { schema } } });
const refusal = (description: string) => ({ description, ...content('application/json', ref('Error')) });
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

const json = (description: string, schema: JSONSchema) => ({
  description,
  ...content('application/json', schema),
});

/** Entries of this machine, or with `--hosts` of each host. */
function listOrHosts(description: string, item: string, key: string, what: string) {
  const byHost = {
    type: 'object',
    description: `${what} of each host, with \`--hosts\`.`,
    additionalProperties: object({ problem: PROBLEM, [key]: orNull(list(ref(item))) }),
  };
  return json(description, { anyOf: [list(ref(item)), byHost] });
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
      ...content('text/plain', text),
    },
    true,
    {
      parameters: [
        {
          ...{ name: 'job', in: 'path', required: true, schema: text },
          description: "the job's number, such as 17; with `--hosts`, behind its host: gpu1:17",
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
    json('Utilization, memory and leases.', ref('History')),
    false,
  ),
  '/api/v1/usage': path(
    'getUsage',
    'The GPU hours of each user on each of the last 30 days; not there with --hosts',
    json('GPU hours, at most a minute old.', ref('Usage')),
    false,
  ),
  '/api/v1/sweeps': path(
    'getSweeps',
    'Sweeps in the background that compare their tasks: those that run, then the newest, four at most; not with --hosts',
    json('Values of their tasks.', list(ref('Sweep'), { maxItems: 4 })),
    false,
  ),
  '/api/v1/stream': path(
    'watch',
    'The state of the machine, one line of JSON per snapshot, without end',
    { description: 'Lines.', ...content('application/x-ndjson', ref('StreamLine')) },
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
    { description: 'Metrics.', ...content('text/plain', text) },
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
    schemas: {
      ...Object.fromEntries(Object.entries(SHAPES).map(([name, { json: shape }]) => [name, shape])),
      ...OWN,
    },
  },
};
