// Secrets that a public number proves: a process that knows the secret can compute the number, and a secret for a
// number can't be found.
#pragma once

#include <cstdint>
#include <string>

namespace gpu_owner::process {

// 32 hexadecimal digits by chance; empty where the system gives none.
std::string new_secret();

// SHA-256 over and over, so that finding a secret for one of 2^49 numbers takes months of a GPU's time; the first 49
// bits.
int64_t number_of_secret(const std::string& secret);

}  // namespace gpu_owner::process
