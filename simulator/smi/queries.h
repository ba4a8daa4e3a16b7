// The queries for scripts in CSV: --query-gpu, --query-compute-apps and others.
#pragma once
#include <string>
#include <vector>

#include "simulator/smi/driver.h"

namespace smi {

struct Format {
  bool header = true;
  bool units = true;
};

// Parses "csv,noheader,nounits". 0, or the exit code, after saying why.
int parse_format(const std::string& text, Format& format);

// The subject of the rows.
enum class Topic { gpu, compute_apps, accounted_apps, retired_pages, remapped_rows, supported_clocks };
struct TopicName {
  const char* option;  // "--query-gpu"
  Topic topic;
};
constexpr TopicName kTopics[] = {
    {"--query-gpu", Topic::gpu},
    {"--query-compute-apps", Topic::compute_apps},
    {"--query-accounted-apps", Topic::accounted_apps},
    {"--query-retired-pages", Topic::retired_pages},
    {"--query-remapped-rows", Topic::remapped_rows},
    {"--query-supported-clocks", Topic::supported_clocks},
};

// A list of fields of one topic.
class Query {
 public:
  // Parses "name,memory.used". 0, or the exit code, after saying which field doesn't exist.
  int parse(const std::string& fields, Topic topic);
  // With the driver open: refuses fields that its version no longer has. 0, or the exit code.
  int refuse_gone() const;
  void print_header(const Format& format) const;
  void print_rows(const std::vector<Gpu>& gpus, const Format& format) const;

 private:
  Topic topic_ = Topic::gpu;
  std::vector<size_t> fields_;
};

// Prints the names of all fields, for --help-query-gpu and others.
void print_fields(Topic topic);

}  // namespace smi
