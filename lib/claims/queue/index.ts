export {
  applyBookings,
  bookingInfo,
  bookingLimit,
  bookingName,
  bookingRules,
  describeBooking,
  MAX_BOOKINGS,
  MAX_NOTE_LENGTH,
  MAX_REPEATS,
  readBookingFiles,
  readBookings,
  type StoredBooking,
  timesOf,
  untilBookingsEnd,
} from './booking-files.ts';
export { describeReached, type Holdings, holdingsWhenAsked, lockedEpochs } from './holdings.ts';
export { allowedTime, applyLimit, exceedsLimit, partOf, requestLimits, sizeOf } from './own-limit.ts';
export { putFirst, wakeRequest, wakeThoseBehind, whyNotLonger } from './own-requests.ts';
export { HEARTBEAT_MS, stampBookings, WAIT_QUEUE_FILE } from './queue-file.ts';
export { requestClass, whoMay } from './request-class.ts';
export { type KeptSlot, Slot } from './slot.ts';
export { StallDetector, WAITERS_PER_HEARTBEAT } from './stall-detector.ts';
export { noteGranted } from './turns.ts';
export { type HandedOverWait, type IdleWait, WaitHandover } from './wait-handover.ts';
export {
  activeWaiters,
  type QueuePosition,
  readWaiters,
  type Waiter,
  WaitQueue,
  waitersAhead,
  withoutGPUs,
} from './wait-queue.ts';
