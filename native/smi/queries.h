// The queries for scripts: --query-gpu and --query-compute-apps, in CSV.
#pragma once
#include <string>
#include <vector>

#include "smi/driver.h"

namespace smi {

struct Format {
  bool header = true;
  bool units = true;
};

// Parses "csv,noheader,nounits". 0, or the exit code, after saying why.
int parse_format(const std::string& text, Format& format);

// A list of fields of one kind of query.
class Query {
 public:
  // Parses "name,memory.used". 0, or the exit code, after saying which field doesn't exist.
  int parse(const std::string& fields, bool about_processes);
  void print_header(const Format& format) const;
  void print_rows(const std::vector<Gpu>& gpus, const Format& format) const;

 private:
  bool about_processes_ = false;
  std::vector<size_t> fields_;
};

// Prints the names of all fields, for --help-query-gpu and --help-query-compute-apps.
void print_fields(bool about_processes);

}  // namespace smi
