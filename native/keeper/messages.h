#pragma once

namespace keeper {

// One line on standard error, in one write, with "gpu-owner: " before it.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace keeper
