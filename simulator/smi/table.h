// The table for people, and the list of -L.
#pragma once
#include <vector>

#include "simulator/smi/driver.h"

namespace smi {

void print_table(const std::vector<Gpu>& gpus);
void print_list(const std::vector<Gpu>& gpus);

}  // namespace smi
