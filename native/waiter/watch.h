#pragma once

#include "waiter/wait.h"

namespace waiter {

// Returns when one of the options' conditions holds, or can't be told any longer. Meanwhile it sends heartbeats.
// SIGALRM and SIGCONT must have handlers without SA_RESTART, the latter this one.
void wait_for_news(const Options& options);
void note_continued(int signal);

// Waits until all files that the program needs are there: an upgrade may be under way. Returns one that isn't after
// some seconds, or null.
const char* wait_for_files(const Options& options);

}  // namespace waiter
