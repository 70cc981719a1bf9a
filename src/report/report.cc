#include "src/report/report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/status.h"
#include "src/engine/cost_model.h"
#include "src/engine/target.h"
#include "src/graph/check.h"
#include "src/graph/mirrored.h"

namespace prism::report {
namespace {

using nlohmann::ordered_json;

constexpr const char* kDefaultTarget = "h200x8";
constexpr const char* kSourceNames[] = {"assumed", "modelled", "interpolated", "measured"};

std::string Duration(double ns) {
  if (ns >= 1e9) return fmt::format("{:.3f} s", ns / 1e9);
  if (ns >= 1e6) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.1f} us", ns / 1e3);
}

std::string Bytes(double bytes) {
  if (bytes >= 1 << 30) return fmt::format("{:.2f} GiB", bytes / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", bytes / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", bytes / (1 << 10));
  return fmt::format("{:.0f} B", bytes);
}

std::string Shortened(std::string text, size_t most) {
  if (text.size() > most) text.replace(most - 3, std::string::npos, "...");
  return text;
}

std::string Percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// Gaps that the shims noted in the traces' metadata.
void CollectGaps(const graph::Graph& graph, Report* report) {
  std::vector<std::set<std::string>> of_meta(graph.metas.size());
  for (size_t i = 0; i < graph.metas.size(); ++i) {
    std::istringstream lines(graph.metas[i]);
    for (std::string line; std::getline(lines, line);) {
      const ordered_json j = ordered_json::parse(line, nullptr, false);
      if (!j.is_object()) continue;
      const auto gaps = j.find("fidelity_gaps");
      if (gaps == j.end() || !gaps->is_array()) continue;
      for (const ordered_json& gap : *gaps) {
        if (gap.is_string()) of_meta[i].insert(gap.get<std::string>());
      }
    }
  }
  for (const graph::Rank& rank : graph.ranks) {
    if (rank.meta == graph::kNone) continue;
    for (const std::string& gap : of_meta[rank.meta]) ++report->fidelity_gaps[gap];
  }
}

// What `prism calibrate` wrote of ranks that did not run; nothing of what is not as it writes it.
Retimed RetimedIn(const ordered_json& job) {
  Retimed retimed;
  const auto list = [](const ordered_json& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() && found->is_array() ? *found
                                                                            : ordered_json::array();
  };
  if (!job.is_object() || !job.contains("retimed")) return retimed;
  for (const ordered_json& rank : list(job["retimed"], "ranks")) {
    if (rank.is_number_unsigned() && rank.get<uint64_t>() <= UINT32_MAX)
      retimed.ranks.push_back(rank.get<uint32_t>());
  }
  for (const ordered_json& check : list(job["retimed"], "checked")) {
    if (check.is_object() && check.contains("difference") && check["difference"].is_number())
      retimed.differences.push_back(check["difference"].get<double>());
  }
  return retimed;
}

// Times at which device memory changed on the ranks with timelines: from a second look at their
// traces.
std::vector<MemoryCurve> MemoryCurves(graph::Graph* graph, const PredictOptions& options,
                                      Evaluated* evaluated) {
  struct Change {
    size_t probe;
    int64_t bytes;
  };
  std::vector<std::vector<graph::Place>> probes(graph->programs.size());
  std::vector<std::pair<uint32_t, std::vector<Change>>> ranks;
  for (uint32_t r : evaluated->timeline) {
    const uint32_t program = graph->ranks[r].program;
    std::vector<Change> changes;
    for (const auto& [place, bytes] : DeviceMemoryChanges(*graph, r)) {
      changes.push_back({probes[program].size(), bytes});
      probes[program].push_back(place);
      if (place.sequence != graph::kNone) graph->programs[program].AddSlot(place);
    }
    if (!changes.empty()) ranks.emplace_back(r, std::move(changes));
  }
  std::vector<MemoryCurve> curves;
  if (ranks.empty()) return curves;
  engine::Options o;
  o.probes = &probes;
  o.delays = evaluated->delays;
  o.tolerate_missing = options.tolerate_missing;
  const engine::CostModel model(options.target, options.network);
  const auto outcome = engine::Evaluate(*graph, model.DurationsOf(*graph), o);
  if (!outcome.ok()) return curves;
  for (const auto& [r, changes] : ranks) {
    MemoryCurve curve{r, {}};
    int64_t now = 0;
    for (const Change& c : changes) {
      now = std::max(now, outcome->ranks[r].probes[c.probe]);
      if (!curve.bytes.empty() && curve.bytes.back().first == now) {
        curve.bytes.back().second = c.bytes;
      } else {
        curve.bytes.emplace_back(now, c.bytes);
      }
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

// Whether the ranks' memory fits the target's GPUs, which may be smaller than those that the job
// was captured for.
void CheckFit(Report* report) {
  std::vector<uint32_t> too_large, only_without_cache;
  const RankMemory *largest = nullptr, *largest_cached = nullptr;
  for (const RankMemory& m : report->memory) {
    if (m.device_needed_bytes() > report->gpu_memory_bytes) {
      too_large.push_back(m.rank);
      if (largest == nullptr || m.device_needed_bytes() > largest->device_needed_bytes())
        largest = &m;
    } else if (m.device_bytes() > report->gpu_memory_bytes) {
      only_without_cache.push_back(m.rank);
      if (largest_cached == nullptr || m.device_bytes() > largest_cached->device_bytes())
        largest_cached = &m;
    }
  }
  const auto bytes = [](uint64_t value) { return Bytes(static_cast<double>(value)); };
  const auto ranks = [](const std::vector<uint32_t>& list) {
    return absl::StrCat(list.size() == 1 ? "rank " : "ranks ", graph::RankList(list));
  };
  report->does_not_fit = too_large;
  if (largest != nullptr) {
    report->findings.push_back(fmt::format(
        "does not fit: out of memory on {}: {} needs {} ({} allocated at the peak, {} context, {} "
        "NCCL), the target's GPU has {}",
        ranks(too_large), too_large.size() == 1 ? "it" : fmt::format("rank {}", largest->rank),
        bytes(largest->device_needed_bytes()), bytes(largest->largest_allocated_bytes),
        bytes(largest->context_bytes / largest->devices),
        bytes(largest->nccl_bytes / largest->devices), bytes(report->gpu_memory_bytes)));
  }
  if (largest_cached != nullptr) {
    report->warnings.push_back(fmt::format(
        "{} would fit only if the allocator gives back what it caches: {} reserved at the peak of "
        "rank {} with context and NCCL, the target's GPU has {}",
        ranks(only_without_cache), bytes(largest_cached->device_bytes()), largest_cached->rank,
        bytes(report->gpu_memory_bytes)));
  }
}

// Copies to the host that a thread then waits for: the program is about to read what they brought.
uint32_t HostReads(const graph::Program& program) {
  std::vector<graph::Place> place_of(program.slots);
  for (uint32_t s = 0; s < program.sequences.size(); ++s) {
    const std::vector<graph::Op>& ops = program.sequences[s].ops;
    for (uint32_t i = 0; i < ops.size(); ++i) {
      if (ops[i].slot != graph::kNone) place_of[ops[i].slot] = {s, i};
    }
  }
  const auto copies_of = [&](const graph::Op& op) {
    if (op.kind != graph::OpKind::kSpan) return uint32_t{0};
    const std::vector<uint32_t>& kernels = program.spans[op.a].kernels;
    return static_cast<uint32_t>(std::count_if(kernels.begin(), kernels.end(), [&](uint32_t k) {
      return program.kernels[k].kind == trace::KernelKind::kCopy &&
             program.kernels[k].name == "DtoH";
    }));
  };
  std::vector<uint32_t> waited_for(program.sequences.size(), 0);
  uint32_t reads = 0;
  for (const graph::Sequence& thread : program.sequences) {
    if (thread.kind != trace::SequenceKind::kThread) continue;
    for (const graph::Op& op : thread.ops) {
      if (op.kind != graph::OpKind::kWait) continue;
      const graph::Place place = place_of[op.a];
      if (place.sequence == graph::kNone ||
          program.sequences[place.sequence].kind != trace::SequenceKind::kStream) {
        continue;
      }
      for (uint32_t& at = waited_for[place.sequence]; at <= place.op; ++at)
        reads += copies_of(program.sequences[place.sequence].ops[at]);
    }
  }
  return reads;
}

// With values none the program goes on with whatever it reads.
void NoteUncomputedReads(const graph::Graph& graph, Report* report) {
  std::vector<uint32_t> reads;
  for (const graph::Program& program : graph.programs) reads.push_back(HostReads(program));
  uint32_t ranks = 0, most = 0;
  for (const graph::Rank& rank : graph.ranks) {
    ranks += reads[rank.program] > 0;
    most = std::max(most, reads[rank.program]);
  }
  if (ranks == 0) return;
  report->fidelity_gaps[fmt::format(
      "values read that were not computed (.item(), .cpu(), print): {} read{} a rank; what the "
      "program decides by them may differ, --values control or cpu computes them",
      most, most == 1 ? "" : "s")] = ranks;
}

// Exchange policy `control`: what ranks communicate may follow from payloads that did not move.
void NoteMirroredStructure(const graph::Graph& graph, const graph::Steps& steps, Report* report) {
  if (steps.ends.empty()) return;
  std::vector<graph::MirroredSteps> of;
  for (size_t p = 0; p < graph.programs.size(); ++p)
    of.push_back(graph::CompareMirrored(graph.programs[p], steps.ends[p]));
  uint32_t ranks = 0, different = 0, mirrored = 0;
  for (const graph::Rank& rank : graph.ranks) {
    const graph::MirroredSteps& of_rank = of[rank.program];
    if (of_rank.different == 0) continue;
    ++ranks;
    different = std::max(different, of_rank.different);
    mirrored = std::max(mirrored, of_rank.mirrored);
  }
  if (ranks == 0) return;
  report->fidelity_gaps[fmt::format(
      "structure depends on mirrored values: {} of the {} steps in which large payloads did not "
      "move any more communicate otherwise than the last exact one; --exchange exact moves all",
      different, mirrored)] = ranks;
}

// The default streams of a rank's GPUs have one handle, and the trace one stream for them.
void NoteSeveralDevices(Report* report) {
  std::vector<uint32_t> ranks;
  for (const RankMemory& m : report->memory) {
    if (m.devices > 1) ranks.push_back(m.rank);
  }
  if (ranks.empty()) return;
  report->warnings.push_back(fmt::format(
      "rank{} {} use{} several GPUs: what these do on their default streams is predicted one after "
      "the other, not at once",
      ranks.size() == 1 ? "" : "s", graph::RankList(ranks), ranks.size() == 1 ? "s" : ""));
}

// A profile of another machine is a what-if, of hostcuda none of a GPU.
void NoteNetwork(const engine::NetworkProfile& profile, const engine::Target& target,
                 Report* report) {
  if (profile.machine.value("device", "") == "host") {
    report->warnings.push_back("the network profile was measured on hostcuda, not on a GPU");
  } else if (!profile.gpu().empty() && profile.gpu() != target.gpu.name) {
    report->warnings.push_back(fmt::format("the network profile is of {}, the target's GPU is {}",
                                           profile.gpu(), target.gpu.name));
  }
}

// Ranks whose memory the observer did not write down, and why.
void NoteUnknownMemory(const std::string& directory, Report* report) {
  std::vector<uint32_t> unknown;
  const RankMemory* first = nullptr;
  for (const RankMemory& m : report->memory) {
    if (m.known || m.total_bytes() == 0) continue;
    unknown.push_back(m.rank);
    if (first == nullptr || (m.damaged && !first->damaged)) first = &m;
  }
  if (first == nullptr) return;
  std::error_code error;
  const bool none_observed = unknown.size() == report->memory.size() &&
                             std::filesystem::is_empty(directory + "/ranks", error);
  report->warnings.push_back(fmt::format(
      "memory by owner is not known of rank{} {}: {}; reserved is what the trace{} took from the "
      "driver",
      unknown.size() == 1 ? "" : "s", graph::RankList(unknown),
      none_observed ? "prism observes the ranks that it starts (python, torchrun), and keeps their "
                      "output; these were started by another program"
                    : first->unknown_because,
      unknown.size() == 1 ? "" : "s"));
}

// The timeline that an earlier simulation wrote, if what it shows is this prediction; else "".
std::string EarlierTimeline(const std::string& directory, const Prediction& prediction) {
  std::ifstream in(directory + "/simulate.json");
  const ordered_json j = ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!j.is_object() || !j.contains("timeline") || !j["timeline"].is_string() ||
      !j.contains("target") || j["target"] != prediction.target || !j.contains("step_ns") ||
      j["step_ns"] != prediction.step_ns) {
    return "";
  }
  // Relative to the job, which may have been moved, unless it was written elsewhere.
  const std::string path =
      (std::filesystem::path(directory) / j["timeline"].get<std::string>()).string();
  std::error_code error;
  return std::filesystem::exists(path, error) ? path : "";
}

absl::StatusOr<Report> Build(const std::string& directory, const ReportOptions& options,
                             bool must_predict) {
  Report report;
  report.directory = directory;
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return WithHint(absl::NotFoundError(absl::StrCat("no job directory at ", directory)),
                    "`prism capture --job DIR -- PROGRAM` makes one");
  }
  ordered_json job;
  if (const auto opened = JobDirectory::Open(directory); opened.ok()) {
    job = opened->info();
    report.state = StateName(opened->state());
    report.reason = opened->reason();
    if (job.contains("device") && job["device"] == "host" && job.contains("values") &&
        job["values"].is_string()) {
      report.values = job["values"].get<std::string>();
    }
    if (job.contains("command") && job["command"].is_array()) {
      std::vector<std::string> words;
      for (const ordered_json& word : job["command"]) {
        if (word.is_string()) words.push_back(word.get<std::string>());
      }
      report.command = absl::StrJoin(words, " ");
    }
  } else if (std::filesystem::exists(directory + "/job.json", error)) {
    return opened.status();
  }

  absl::StatusOr<graph::Graph> graph =
      graph::LoadJob(directory, {.allow_incomplete = options.allow_incomplete,
                                 .launch = options.launch,
                                 .align_communications = options.align_communications});
  PRISM_ASSIGN_OR_RETURN(engine::Target target, TargetOf(job, graph.ok() ? graph->world : 0,
                                                         options.target, &report.warnings));
  PredictOptions predict;
  predict.target = std::move(target);
  predict.network = options.network;
  if (options.network != nullptr) NoteNetwork(options.network->profile(), predict.target, &report);
  predict.step = options.step;
  predict.seed = options.seed;
  predict.jitter = options.jitter;
  predict.draws = options.draws;
  predict.threads = options.threads;
  predict.timeline_ranks = options.timeline_ranks;
  predict.tolerate_missing = options.allow_incomplete;
  predict.retimed = RetimedIn(job);
  predict.samples = options.samples;
  predict.delays = options.delays;
  predict.what_if = options.what_if;
  report.gpu_memory_bytes = predict.target.gpu.memory_bytes;

  absl::Status failure;
  if (!graph.ok()) {
    failure = graph.status();
    if (job.is_object() && job.contains("device") && job["device"] == "none") {
      report.nothing_to_predict = true;
      failure = absl::FailedPreconditionError(
          "the job ran without CUDA (--device none), and nothing was traced");
    }
    if (job.is_object() && job.contains("world") && job["world"].is_number_unsigned()) {
      report.world = job["world"].get<uint32_t>();
    }
  } else {
    report.world = graph->world;
    report.roles = graph->programs.size();
    report.nodes = graph->ops;
    report.trace_bytes = graph->trace_bytes;
    if (graph->launches > 1) {
      report.warnings.push_back(fmt::format(
          "the command ran {} programs, each a job of its own; this is number {}{}: --program N "
          "chooses another",
          graph->launches, graph->launch, graph->launch == graph->launches ? ", the last" : ""));
    }
    report.warnings.insert(report.warnings.end(), graph->warnings.begin(), graph->warnings.end());
    CollectGaps(*graph, &report);
    if (report.values == "none") NoteUncomputedReads(*graph, &report);
    if (!options.allow_incomplete) {
      for (const graph::Finding& f : graph::CheckStructure(*graph))
        report.findings.push_back(f.text);
    }
    Evaluated evaluated;
    absl::StatusOr<Prediction> prediction = Predict(&*graph, predict, &evaluated);
    NoteMirroredStructure(*graph, evaluated.steps, &report);
    if (graph->ops == 0 || (prediction.ok() && prediction->step_ns == 0)) {
      report.nothing_to_predict = true;
      failure = absl::FailedPreconditionError("no rank did anything on a GPU that takes time");
    } else if (prediction.ok()) {
      report.prediction = *std::move(prediction);
      // Traces tell of the job as it was.
      const bool changed =
          std::any_of(options.what_if.begin(), options.what_if.end(),
                      [](const engine::WhatIf& what_if) { return what_if.changes_job(); });
      if (changed)
        report.warnings.push_back("memory is that of the captured job, not of what it would be");
      if (!options.timeline_path.empty()) {
        const std::vector<MemoryCurve> curves =
            changed ? std::vector<MemoryCurve>() : MemoryCurves(&*graph, predict, &evaluated);
        PRISM_RETURN_IF_ERROR(WritePerfetto(options.timeline_path, *graph, evaluated, curves));
        report.timeline_path = options.timeline_path;
      }
    } else {
      failure = prediction.status();
      // A wrong option is the user's to correct; a job that does not fit its own state is what a
      // report is about.
      if (failure.code() == absl::StatusCode::kInvalidArgument ||
          failure.code() == absl::StatusCode::kNotFound) {
        return failure;
      }
    }
  }
  if (failure.code() == absl::StatusCode::kInvalidArgument) return failure;
  if (!failure.ok()) {
    if (must_predict || (!job.is_object() && !graph.ok())) return failure;
    report.no_prediction_because = std::string(failure.message());
    report.hint = HintOf(failure);
  }
  if (report.timeline_path.empty() && report.prediction.has_value() && !must_predict)
    report.timeline_path = EarlierTimeline(directory, *report.prediction);
  report.memory = ReadMemory(directory, report.world, graph.ok() ? &*graph : nullptr,
                             predict.target.gpu.context_bytes);
  NoteSeveralDevices(&report);
  NoteUnknownMemory(directory, &report);
  CheckFit(&report);
  return report;
}

}  // namespace

absl::StatusOr<engine::Target> TargetOf(const ordered_json& job, uint32_t world, std::string wanted,
                                        std::vector<std::string>* warnings) {
  uint64_t memory_bytes = 0;  // 0: as such a GPU has
  if (wanted.empty() && job.is_object() && job.contains("target") && job["target"].is_object() &&
      job["target"].contains("text") && job["target"]["text"].is_string()) {
    wanted = job["target"]["text"].get<std::string>();
    if (const auto& bytes = job["target"].value("gpu_memory_bytes", ordered_json());
        bytes.is_number_unsigned())
      memory_bytes = bytes.get<uint64_t>();
  }
  if (wanted.empty()) {
    wanted = kDefaultTarget;
    if (world > 8) wanted = absl::StrCat(kDefaultTarget, ":", (world + 7) / 8);
    warnings->push_back(absl::StrCat("the job names no target; ", wanted, " was taken"));
  }
  PRISM_ASSIGN_OR_RETURN(engine::Target target, engine::ParseTarget(wanted));
  if (memory_bytes != 0) target.gpu.memory_bytes = memory_bytes;
  return target;
}

absl::StatusOr<Report> BuildReport(const std::string& directory, const ReportOptions& options) {
  return Build(directory, options, /*must_predict=*/false);
}

absl::StatusOr<Report> Simulate(const std::string& directory, const ReportOptions& options) {
  PRISM_ASSIGN_OR_RETURN(Report report, Build(directory, options, /*must_predict=*/true));
  ordered_json j;
  j["schema"] = "prism.simulate";
  j["schema_version"] = Report::kSchemaVersion;
  j.update(report.prediction->Json());
  if (!report.timeline_path.empty()) {
    const bool inside = report.timeline_path.starts_with(directory + "/");
    j["timeline"] = inside ? report.timeline_path.substr(directory.size() + 1)
                           : std::filesystem::absolute(report.timeline_path).string();
  }
  const std::string path = directory + "/simulate.json", temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << j.dump(2) << "\n";
    out.close();
    if (!out) {
      return WithHint(absl::UnavailableError(absl::StrCat("cannot write ", temporary)),
                      "the prediction is kept beside the job; `prism report DIR` only shows it");
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
  return report;
}

std::string Report::Text() const {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& text) {
    out += fmt::format("{:<12} {}\n", name, text);
  };
  line("job", command.empty() ? directory : fmt::format("{}: {}", directory, command));
  if (!state.empty() && state != "complete") {
    line("state", reason.empty() ? state : fmt::format("{}: {}", state, reason));
  }
  if (nodes > 0) {
    line("graph",
         fmt::format("{} ranks in {} distinct role{}, {} nodes, {}", world, roles,
                     roles == 1 ? "" : "s", nodes, Bytes(static_cast<double>(trace_bytes))));
  }
  if (values == "none" && !nothing_to_predict) {
    line("values",
         "none: nothing was computed, so the program's own numbers (losses) mean nothing; --values "
         "cpu computes them");
  } else if (values == "control" && !nothing_to_predict) {
    line("values",
         "control: large tensors were not computed, so the program's own numbers (losses) mean "
         "nothing; --values cpu computes them");
  }
  for (const std::string& w : warnings) line("warning", w);
  for (const std::string& f : findings) line("problem", f);
  if (prediction.has_value()) {
    const Prediction& p = *prediction;
    line("target", fmt::format("{} ({})", p.target, p.gpu));
    std::string range =
        p.high_ns > 0 ? fmt::format(", between {} and {}", Duration(static_cast<double>(p.low_ns)),
                                    Duration(static_cast<double>(p.high_ns)))
                      : std::string();
    size_t dominant = 0;
    for (size_t s = 1; s < 4; ++s) dominant = p.by_source[s] > p.by_source[dominant] ? s : dominant;
    if (p.whole_run_because.empty()) {
      line("step time",
           fmt::format("{}{} (mostly {}; step {} of {}, found by {})",
                       Duration(static_cast<double>(p.step_ns)), range, kSourceNames[dominant],
                       p.reported_step, p.steps.size(), p.method));
    } else {
      line("run time", fmt::format("{}{} (mostly {}); {}", Duration(static_cast<double>(p.step_ns)),
                                   range, kSourceNames[dominant], p.whole_run_because));
      if (!p.step_hint.empty()) line("hint", p.step_hint);
    }
    if (p.without_what_if_ns.has_value()) {
      const auto without = static_cast<double>(*p.without_what_if_ns);
      line("", fmt::format("{} without the what-ifs: {:+.2f} %", Duration(without),
                           100 * (static_cast<double>(p.step_ns) / without - 1)));
    }
    if (p.percentiles.has_value()) {
      const auto shown = [](int64_t ns) { return Duration(static_cast<double>(ns)); };
      const auto& [p10, p50, p90] = *p.percentiles;
      const MeanInterval& interval = *p.mean_interval;
      line("", fmt::format("drawn: p10 {}, p50 {}, p90 {}; mean {}, 90 % interval {} to {}",
                           shown(p10), shown(p50), shown(p90), shown(interval.mean_ns),
                           shown(interval.low_ns), shown(interval.high_ns)));
      for (const WidthSource& source : interval.sources) {
        line("", fmt::format("  -{:.3f} to +{:.3f} %: {}", 100 * source.low, 100 * source.high,
                             source.name));
      }
    }
    std::vector<std::string> parts;
    for (size_t s = 0; s < 4; ++s) {
      if (p.by_source[s] >= 0.005)
        parts.push_back(fmt::format("{} {}", kSourceNames[s], Percent(p.by_source[s])));
    }
    if (!parts.empty()) line("  by source", absl::StrJoin(parts, ", "));
    if (p.high_ns > 0) {
      line("  by kind",
           fmt::format(
               "compute {}, communication {}, host {}, latency and gaps {}",
               Percent(p.compute_share), Percent(p.communication_share), Percent(p.host_share),
               Percent(std::max(0.0, 1 - p.compute_share - p.communication_share - p.host_share))));
    }
    if (p.peak_utilization > 0) {
      line("  utilization",
           fmt::format("{:.1f} % of the GPU's bf16 peak", 100 * p.peak_utilization));
    }
    if (p.network.has_value()) {
      const NetworkUse& n = *p.network;
      line("network",
           fmt::format("profile of {} ({}); of {} distinct communications {} measured, {} "
                       "interpolated, {} modelled{}",
                       n.gpu.empty() ? "an unnamed GPU" : n.gpu,
                       n.isolated ? "isolated calls" : "calls in a row",
                       n.measured + n.interpolated + n.modelled, n.measured, n.interpolated,
                       n.modelled,
                       n.modelled_operations.empty()
                           ? ""
                           : absl::StrCat(" (", absl::StrJoin(n.modelled_operations, ", "), ")")));
    }
    double exposed = 0, worst = -1;
    uint32_t worst_rank = 0;
    for (const RankTime& r : p.ranks) {
      const double share =
          r.step_ns == 0 ? 0 : static_cast<double>(r.exposed_ns) / static_cast<double>(r.step_ns);
      exposed += share / static_cast<double>(p.ranks.size());
      if (share > worst) {
        worst = share;
        worst_rank = r.rank;
      }
    }
    if (!p.communications.empty()) {
      line("exposed",
           fmt::format("{} of the step is communication that nothing hides; most on rank {}: {}",
                       Percent(exposed), worst_rank, Percent(worst)));
    }
    for (const auto& [rank, ns] : p.stragglers) {
      line("waited for",
           fmt::format("rank {}: the others wait {} a step more than it does", rank, Duration(ns)));
    }
    std::map<uint32_t, size_t> classes;
    for (const StepTime& s : p.steps) ++classes[s.step_class];
    for (const auto& [c, count] : classes) {
      if (c == graph::Steps::kTraining) continue;
      int64_t ns = 0;
      for (const StepTime& s : p.steps) ns += s.step_class == c ? s.ns : 0;
      line("  other", fmt::format("{} between steps: {} times, {} each", p.class_names[c], count,
                                  Duration(static_cast<double>(ns) / static_cast<double>(count))));
    }
    for (const std::string& note : p.notes) line("note", note);
    if (!p.critical_path.empty()) {
      constexpr size_t kShown = 10;
      out += "\ncritical path: what the step would be shorter by without it\n";
      for (size_t i = 0; i < std::min(p.critical_path.size(), kShown); ++i) {
        const PathRow& row = p.critical_path[i];
        out += fmt::format("  {:>12} {:>5}  {:<13} {} ({} times, {})\n",
                           Duration(static_cast<double>(row.ns)),
                           Percent(static_cast<double>(row.ns) / static_cast<double>(p.step_ns)),
                           PathKindName(row.kind), Shortened(row.what, 72), row.times,
                           row.ranks.size() == 1 ? fmt::format("rank {}", row.ranks[0])
                                                 : "ranks " + graph::RankList(row.ranks));
      }
      if (p.critical_path.size() > kShown)
        out += fmt::format("  and {} smaller ones\n", p.critical_path.size() - kShown);
    }
    if (!p.communications.empty()) {
      out += fmt::format(
          "\ncommunication, a step and rank\n  {:<24} {:<14} {:>8} {:>12} {:>12} {:>12}\n", "group",
          "operation", "calls", "bytes", "transfer", "waiting");
      for (const CommunicationRow& c : p.communications) {
        out += fmt::format("  {:<24} {:<14} {:>8.1f} {:>12} {:>12} {:>12}\n", c.group, c.operation,
                           c.calls, Bytes(c.bytes), Duration(c.transfer_ns), Duration(c.wait_ns));
      }
    }
  } else {
    line("prediction", absl::StrCat("none: ", no_prediction_because));
    if (!hint.empty()) line("hint", hint);
  }

  // Ranks whose figures agree to 1 MiB share a row.
  struct Row {
    const RankMemory* memory;
    std::vector<uint32_t> ranks;
  };
  std::map<std::vector<uint64_t>, Row> rows;
  std::vector<std::string> owner_names;
  for (const RankMemory& m : memory) {
    if (m.total_bytes() == 0) continue;
    std::vector<uint64_t> key{m.known, m.devices, m.peak_allocated_bytes >> 20,
                              m.peak_reserved_bytes >> 20, m.nccl_bytes >> 20};
    for (const auto& [name, bytes] : m.owners) {
      key.push_back(bytes >> 20);
      if (std::find(owner_names.begin(), owner_names.end(), name) == owner_names.end())
        owner_names.push_back(name);
    }
    Row& row = rows[key];
    if (row.memory == nullptr) row.memory = &m;
    row.ranks.push_back(m.rank);
  }
  if (!rows.empty()) {
    std::vector<Row> sorted;
    for (auto& [key, row] : rows) sorted.push_back(row);
    std::sort(sorted.begin(), sorted.end(),
              [](const Row& x, const Row& y) { return x.ranks[0] < y.ranks[0]; });
    out += fmt::format("\nmemory at the peak, of {} a GPU\n  {:<12}",
                       Bytes(static_cast<double>(gpu_memory_bytes)), "ranks");
    for (std::string name : owner_names) {
      std::replace(name.begin(), name.end(), '_', ' ');
      out += fmt::format(" {:>{}}", name, std::max<size_t>(name.size(), 11));
    }
    constexpr const char* kNccl = "NCCL (modelled)";
    out += fmt::format(" {:>11} {:>11} {:>11} {:>15} {:>11}\n", "allocated", "reserved", "context",
                       kNccl, "total");
    for (const Row& row : sorted) {
      std::string ranks = graph::RankList(row.ranks, 6, ",");
      if (row.memory->devices > 1) ranks += fmt::format(" ({} GPUs)", row.memory->devices);
      out += fmt::format("  {:<12}", ranks);
      for (const std::string& name : owner_names) {
        const auto it = std::find_if(row.memory->owners.begin(), row.memory->owners.end(),
                                     [&](const auto& owner) { return owner.first == name; });
        out += fmt::format(
            " {:>{}}",
            it == row.memory->owners.end() ? "-" : Bytes(static_cast<double>(it->second)),
            std::max<size_t>(name.size(), 11));
      }
      const auto bytes = [](uint64_t value) { return Bytes(static_cast<double>(value)); };
      out += fmt::format(" {:>11} {:>11} {:>11} {:>15} {:>11}\n",
                         row.memory->known ? bytes(row.memory->peak_allocated_bytes) : "-",
                         bytes(row.memory->peak_reserved_bytes), bytes(row.memory->context_bytes),
                         bytes(row.memory->nccl_bytes), bytes(row.memory->total_bytes()));
    }
  }
  size_t out_of_memory = 0;
  for (const RankMemory& m : memory) {
    if (m.out_of_memory.empty()) continue;
    if (out_of_memory++ == 0)
      out += fmt::format("\nout of memory: rank {}: {}\n", m.rank, m.out_of_memory.back());
  }
  if (out_of_memory > 1) out += fmt::format("  and {} more ranks\n", out_of_memory - 1);
  if (!fidelity_gaps.empty()) {
    out += "\nnot emulated faithfully\n";
    for (const auto& [gap, ranks] : fidelity_gaps)
      out += fmt::format("  {} ({} rank{})\n", gap, ranks, ranks == 1 ? "" : "s");
  }
  if (!timeline_path.empty())
    out += fmt::format("\ntimeline     {} (open it in https://ui.perfetto.dev)\n", timeline_path);
  return out;
}

ordered_json Report::Json() const {
  ordered_json j;
  j["job"] = {{"directory", directory}, {"command", command}, {"state", state},
              {"reason", reason},       {"values", values},   {"world", world}};
  j["graph"] = {{"roles", roles}, {"nodes", nodes}, {"bytes", trace_bytes}};
  j["warnings"] = warnings;
  j["findings"] = findings;
  j["prediction"] = prediction.has_value() ? prediction->Json() : ordered_json();
  if (!prediction.has_value()) {
    j["no_prediction_because"] = no_prediction_because;
    j["nothing_to_predict"] = nothing_to_predict;
  }
  j["gpu_memory_bytes"] = gpu_memory_bytes;
  j["does_not_fit"] = does_not_fit;
  j["memory"] = ordered_json::array();
  for (const RankMemory& m : memory) {
    if (m.total_bytes() == 0) continue;
    ordered_json row{{"rank", m.rank}, {"devices", m.devices}};
    if (!m.known) row["unknown_because"] = m.unknown_because;
    for (const auto& [name, bytes] : m.owners) row["owners"][name] = bytes;
    row["peak_allocated_bytes"] = m.peak_allocated_bytes;
    row["peak_reserved_bytes"] = m.peak_reserved_bytes;
    row["context_bytes"] = m.context_bytes;
    row["nccl_bytes"] = m.nccl_bytes;
    row["nccl_source"] = "modelled";
    row["total_bytes"] = m.total_bytes();
    if (!m.out_of_memory.empty()) row["out_of_memory"] = m.out_of_memory;
    j["memory"].push_back(std::move(row));
  }
  j["fidelity_gaps"] = ordered_json::array();
  for (const auto& [gap, ranks] : fidelity_gaps)
    j["fidelity_gaps"].push_back({{"name", gap}, {"ranks", ranks}});
  if (!timeline_path.empty()) j["timeline"] = timeline_path;
  return j;
}

}  // namespace prism::report
