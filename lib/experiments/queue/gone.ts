import { GPUOwnerError } from '../../errors.ts';

/** The queue is not where it was opened. It helps nobody to go on with it, unless it is put back soon. */
export class QueueRemovedError extends GPUOwnerError {
  constructor(message: string) {
    super('ERR_QUEUE', message);
  }
}
