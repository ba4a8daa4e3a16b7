// The descriptors that this process holds locks with, for an end that may come late: a thread that is stuck in the
// kernel keeps all descriptors of its process open, also after exit and kill.
#pragma once

namespace gpu_owner::locks {

// Notes a descriptor on which a lock was taken.
void note_held(int descriptor);

// Closes this process's descriptors of all locks that it still holds. A process that has inherited one keeps its
// lock. The numbers stay taken, by /dev/null: threads of ours may still write there. May be called in signal
// handlers.
void abandon_held();

// From now on, SIGINT, SIGTERM and SIGHUP do that before they end the process, where the program doesn't handle them.
void abandon_held_at_signals();

}  // namespace gpu_owner::locks
