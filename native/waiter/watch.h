#pragma once

#include "waiter/options.h"

namespace waiter {

// Returns when one of the options' conditions holds, or can't be told any longer. Meanwhile it sends heartbeats.
// SIGALRM must have a handler without SA_RESTART.
void wait_for_news(const Options& options);

}  // namespace waiter
