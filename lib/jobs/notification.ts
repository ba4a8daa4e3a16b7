// Tells a job's user of its start and end, by a command or a webhook of the configuration. A process of its own does it, which
// is not waited for: neither a program that hangs nor a network that is down holds a job up. The webhook's URL is a secret:
// only this process reads it, and writes it nowhere.
import { appendFileSync, closeSync, openSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { loadNotificationTargets, type NotificationTargets } from '../config/index.ts';
import { errorMessage, ifPossible } from '../errors.ts';
import { label } from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  formatDuration,
  formatSince,
  hostName,
  isoTime,
  ownProgram,
  runLimited,
  sanitize,
  showValue,
  systemError,
  usageError,
} from '../platform/index.ts';
import { readActivity } from '../status/index.ts';
import { endedJob, type Job, jobAt } from './job-state.ts';
import { ENVIRONMENT, JobStore } from './job-store.ts';
import { OWN_VARIABLES } from './start.ts';

/** The events that notify a job's user: once each, except `idle`. */
export const JOB_EVENTS = ['started', 'idle', 'ended'] as const;
export type JobEvent = (typeof JOB_EVENTS)[number];

/** Time limits in ms. */
export const LIMITS = { postMs: 10_000, commandMs: 30_000 };

const LOG = 'notifications';
/** The file of a job whose end is notified: several processes may see it. */
const ENDED = 'told-ended';
const FOR_OWNER = 0o600;

/** Variables of a job that are not for the notifier: some are the job's alone, and some make Node.js write what it sends. */
const UNWANTED = [
  'CUDA_VISIBLE_DEVICES',
  'CUDA_DEVICE_ORDER',
  'GPU_OWNER_JOB',
  'GPU_OWNER_INHERITED',
  ...OWN_VARIABLES,
  'NODE_DEBUG',
  'NODE_OPTIONS',
  'NODE_TLS_REJECT_UNAUTHORIZED',
];

// The starting process needn't know how to: nothing of the job is open in it, and its parent doesn't wait for it.
const DETACH = `exec </dev/null >/dev/null 2>&1; cd /; unset ${UNWANTED.join(' ')}; "$@" &`;

/** @throws ERR_INVALID_ARGUMENT where nothing says how to tell, ERR_CONFIGURATION */
export function checkNotification(): void {
  const { command, webhook } = loadNotificationTargets();
  if (command !== null || webhook !== null) return;
  throw usageError(
    '--notify: nothing says how to tell you. Write it into ~/.config/gpu-owner/config.yaml (chmod 600): ' +
      "'notifyWebhook: https://hooks.slack.com/…' or 'notifyCommand: [PROGRAM, ARGUMENT]'; `gpu-owner docs jobs` has examples",
  );
}

/** The words that start a process which tells of a job, and doesn't wait for it. */
export function notifierOf(store: JobStore, id: number, event: JobEvent): [string, ...string[]] {
  return ['/bin/sh', '-c', DETACH, 'sh', ...ownProgram('notify-job', store.directoryOf(id), event)];
}

/** Starts it, with the job's environment. A failure is logged. */
export function startNotifier(store: JobStore, id: number, event: JobEvent): void {
  let nothing = -1;
  try {
    const words = notifierOf(store, id, event);
    const environment = readFileSync(join(store.directoryOf(id), ENVIRONMENT));
    nothing = openSync('/dev/null', 'w');
    const { error } = native().processStartDetached(
      words[0],
      words,
      new Uint8Array(),
      environment,
      nothing,
      nothing + 1,
      [],
    );
    if (error !== 0) throw new Error(systemError(error));
  } catch (error) {
    log(store, id, `${event}: the notifier can't be started: ${errorMessage(error)}`);
  } finally {
    if (nothing >= 0) closeSync(nothing);
  }
}

/** Tells of a job that was cancelled while it waited: of its processes, none is left that could. */
export function notifyOfCancelled(store: JobStore, id: number): void {
  const job = store.read(id);
  if (job === null || !job.request.notify) return;
  if (job.progress?.failure !== undefined || typeof job.end?.ended === 'number') return; // the writer of that tells, too
  startNotifier(store, id, 'ended');
}

/**
 * The notifier's work: returns when everybody was told, or the time is up.
 * @param directory the job's
 */
export async function notifyOfJob(directory: string, event: JobEvent, limits = LIMITS): Promise<void> {
  const id = Number(basename(directory));
  const store = JobStore.around(directory);
  if (!Number.isSafeInteger(id) || store.read(id) === null) return;
  if (event === 'ended' && (endedJob(store, id) === null || !isFirst(store, id))) return;
  const message = messageOf(store, id, event);
  if (message === null) return;
  let targets: NotificationTargets;
  try {
    targets = loadNotificationTargets();
  } catch (error) {
    return log(store, id, `${message.event}: ${errorMessage(error)}`);
  }
  const { command, webhook } = targets;
  const report = (target: string, failure: string | null) =>
    log(
      store,
      id,
      `${message.event}: ${target} ${failure === null ? 'was notified' : `was not notified: ${sanitize(failure, 2_000)}`}`,
    );
  await Promise.all([
    command &&
      runCommand(command, message, limits.commandMs).then((why) => report(showValue(command[0]), why)),
    webhook && post(webhook, message, limits.postMs).then((why) => report(webhook.host, why)),
  ]);
}

interface Message {
  event: 'started' | 'idle' | 'completed' | 'failed' | 'cancelled' | 'lost';
  /** For people. Slack, Mattermost and others show it, and nothing else. */
  text: string;
  host: string;
  job: Job;
}

function messageOf(store: JobStore, id: number, event: JobEvent): Message | null {
  const host = hostName();
  if (event !== 'ended') {
    // As it was then: it may have ended by now.
    const job: Job = { ...jobAt(store, id), state: 'running', exitCode: null, reason: null, ended: null };
    const gpus = job.gpus.map((gpu) => label({ ...gpu, instance: gpu.instance ?? null }));
    const where = gpus.length === 0 ? host : `${host}, GPU ${gpus.join(', ')}`;
    const ends = event === 'idle' ? idleEndOf(store, id) : undefined;
    const what =
      event === 'started'
        ? `started on ${where}`
        : `holds GPUs that do nothing, on ${where}${ends === undefined ? '' : `, and is ended at ${formatSince(ends)} unless it uses them`}`;
    return { event, text: `${titleOf(job)} ${what}: ${job.command}`, host, job };
  }
  const job = endedJob(store, id);
  if (job === null) return null;
  const state = job.state as Message['event'];
  const how = {
    started: '',
    idle: '',
    completed: 'completed',
    failed: `failed with exit code ${job.exitCode}`,
    cancelled: 'was cancelled',
    lost: 'was lost',
  }[state];
  const passed = Date.parse(job.ended ?? '') - Date.parse(job.started ?? '');
  const after = Number.isNaN(passed) ? '' : ` after ${formatDuration(Math.max(0, passed))}`;
  const why = job.reason ? ` (${job.reason})` : '';
  return { event: state, text: `${titleOf(job)} ${how} on ${host}${after}: ${job.command}${why}`, host, job };
}

/** When the job is ended as its GPUs do nothing, ISO 8601. */
function idleEndOf(store: JobStore, id: number): string | undefined {
  const lock = store.read(id)?.request.lock.path;
  if (lock === undefined) return undefined;
  const { leases } = readActivity(dirname(lock));
  return leases.find(({ info }) => info.job === id && info.uid === process.geteuid?.())?.info.idleEnds;
}

function titleOf({ id, name }: Job): string {
  return `job ${id}${name === null ? '' : ` (${name})`}`;
}

/** @returns why it failed */
function runCommand(words: readonly string[], message: Message, limitMs: number): Promise<string | null> {
  const { event, text, job } = message;
  const env = {
    ...process.env,
    GPU_OWNER_EVENT: event,
    GPU_OWNER_TEXT: text,
    GPU_OWNER_JOB_ID: String(job.id),
    GPU_OWNER_JOB_NAME: job.name ?? '',
    GPU_OWNER_JOB_STATE: job.state,
    GPU_OWNER_JOB_EXIT_CODE: String(job.exitCode ?? ''),
    GPU_OWNER_JOB_OUTPUT: job.output ?? '',
  };
  return runLimited(words, `${JSON.stringify(message)}\n`, limitMs, { env });
}

/** @returns why it failed */
function post(url: URL, message: Message, ms: number): Promise<string | null> {
  const body = JSON.stringify(message);
  const isSecure = url.protocol === 'https:';
  const { request } = isSecure
    ? process.getBuiltinModule('node:https')
    : process.getBuiltinModule('node:http');
  return new Promise((resolve) => {
    const done = (failure: string | null) => {
      clearTimeout(timer);
      sent.destroy();
      resolve(failure);
    };
    const sent = request(url, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
        'user-agent': 'gpu-owner',
      },
      // Whatever the environment says.
      rejectUnauthorized: true,
      // A proxy, which https has by Node's own rules, would see all of an http URL.
      ...(isSecure ? {} : { agent: false }),
    });
    const timer = setTimeout(() => done(`no answer within ${formatDuration(ms)}`), ms);
    sent.on('error', (error: NodeJS.ErrnoException) => done(withoutSecrets(error, url)));
    sent.on('response', ({ statusCode: status = 0 }) => {
      if (status >= 200 && status < 300) return done(null);
      // To another host the secret must not go, and a POST that is redirected often becomes a GET.
      if (status >= 300 && status < 400)
        return done(`it answered ${status}, a redirection: give the URL that it leads to`);
      done(`it answered ${status}`);
    });
    sent.end(body);
  });
}

/** An error without what is secret. */
function withoutSecrets({ message, code = 'an unknown error' }: NodeJS.ErrnoException, url: URL): string {
  const secrets = [url.pathname, url.search, url.username, url.password].filter((part) => part.length > 1);
  return message === '' || secrets.some((secret) => message.includes(secret)) ? code : message;
}

/** Whether no other process notifies of the job's end. */
function isFirst(store: JobStore, id: number): boolean {
  const open = () => openSync(join(store.directoryOf(id), ENDED), 'wx', FOR_OWNER);
  const mark = ifPossible(open, null);
  if (mark !== null) closeSync(mark);
  return mark !== null;
}

function log(store: JobStore, id: number, text: string): void {
  const line = `${isoTime(Date.now())} ${text}\n`;
  // The log isn't needed.
  ifPossible(() => appendFileSync(join(store.directoryOf(id), LOG), line, { mode: FOR_OWNER }), undefined);
}
