export { backfilled } from './backfill.ts';
export {
  type BookedRequest,
  type Booking,
  type BookingLimit,
  bookingInTheWay,
  bookingsInForce,
} from './bookings.ts';
export { freeTimes, type GPUUse, latestStarts } from './latest-start.ts';
export { isAboveLimit, limitOf, type TogetherLimit, type UserLimit } from './limits.ts';
export {
  CLASSES,
  formatTag,
  inNewOrder,
  inOrder,
  isMispriced,
  type Place,
  parseTag,
  type RequestClass,
  repriced,
  TAG_LENGTH,
  type Tag,
  type Turn,
  tagFor,
  turnAfter,
} from './order.ts';
export { type PreemptibleLease, whoGivesWay } from './preemption.ts';
export { whyHere } from './reason.ts';
export { bestFit, type DividedGPU, keepRoom, type ShareSize, unitsOf } from './shares.ts';
export {
  findBlockers,
  type GpuRequest,
  type JoiningRequest,
  mostUsable,
  reservedFor,
  withKeptSets,
} from './turn.ts';
