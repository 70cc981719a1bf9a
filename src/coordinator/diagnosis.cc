#include "src/coordinator/diagnosis.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "fmt/format.h"

namespace prism::coordinator {
namespace {

using Member = Wait::Member;

// Ranks that expected the same at the same place become one party, largest first, so that the odd
// one comes last.
std::vector<Party> GroupByExpectation(const std::vector<Member>& members, const char* one,
                                      const char* several) {
  std::map<std::pair<std::string, std::string>, std::vector<uint32_t>> groups;
  for (const Member& member : members)
    groups[{member.expectation, member.call_site}].push_back(member.rank);
  std::vector<Party> parties;
  for (auto& [key, ranks] : groups)
    parties.push_back(
        {ranks, fmt::format("{} {}", ranks.size() == 1 ? one : several, key.first), key.second});
  std::stable_sort(parties.begin(), parties.end(),
                   [](const Party& a, const Party& b) { return a.ranks.size() > b.ranks.size(); });
  return parties;
}

std::vector<Member> Waiting(const Wait& wait) {
  std::vector<Member> waiting;
  std::copy_if(wait.members.begin(), wait.members.end(), std::back_inserter(waiting),
               [](const Member& m) { return m.waiting; });
  return waiting;
}

std::vector<uint32_t> Missing(const Wait& wait) {
  std::vector<uint32_t> missing;
  for (const Member& member : wait.members) {
    if (!member.waiting) missing.push_back(member.rank);
  }
  return missing;
}

Diagnosis About(const Wait& wait) {
  Diagnosis diagnosis;
  diagnosis.comm = wait.comm;
  diagnosis.comm_ranks = wait.comm_ranks;
  diagnosis.call = wait.call;
  return diagnosis;
}

std::string At(const std::string& site) { return site.empty() ? "" : " at " + site; }

// What a rank that is awaited does instead.
Party Elsewhere(const RankState& state) {
  Party party{{state.rank}, "", ""};
  const std::string last = state.last_call.empty()
                               ? "it made no communication call before"
                               : "its last communication call was " + state.last_call;
  switch (state.life) {
    case RankState::Life::kNotStarted:
      party.text = "was never started, or never reached CUDA";
      break;
    case RankState::Life::kStarted:
      party.text = "has started, but has not reached CUDA";
      party.call_site = state.where;
      break;
    case RankState::Life::kConnected:
      party.text = "is blocked outside prism's communications; " + last;
      party.call_site = state.where;
      break;
    case RankState::Life::kGone:
      party.text = state.end.Text() + "; " + last;
      party.call_site = state.end.call_site;
      break;
  }
  return party;
}

// Ranks that do the same at the same place are one party.
void AddElsewhere(const std::vector<RankState>& states, std::vector<Party>* parties) {
  std::map<std::pair<std::string, std::string>, Party> elsewhere;
  for (const RankState& state : states) {
    const Party party = Elsewhere(state);
    auto& merged =
        elsewhere.try_emplace({party.text, party.call_site}, Party{{}, party.text, party.call_site})
            .first->second;
    merged.ranks.push_back(state.rank);
  }
  for (auto& [key, party] : elsewhere) parties->push_back(std::move(party));
}

// "sleeps at x.py:3", "is blocked".
std::string IdleText(const RankState& state) {
  return (state.sleeps ? "sleeps" : "is blocked") + At(state.where);
}

std::string Seconds(int64_t ns) { return fmt::format("{:.0f} s", static_cast<double>(ns) / 1e9); }

constexpr char kOrderHint[] =
    "a communicator is made at a group's first call: every rank must make its groups, and use them "
    "first, in the same order; look at what the awaited rank does instead";
constexpr char kMissingHint[] =
    "look for a branch that only some ranks take (if rank == 0, an early return, uneven data) "
    "around that call";

}  // namespace

std::string RankList(std::vector<uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[i]);
    if (end > i) text += fmt::format("{}{}", end == i + 1 ? "," : "-", ranks[end]);
    i = end + 1;
  }
  return text;
}

std::string Ranks(std::vector<uint32_t> ranks) {
  const bool one = std::set<uint32_t>(ranks.begin(), ranks.end()).size() == 1;
  return (one ? "rank " : "ranks ") + RankList(std::move(ranks));
}

std::string Diagnosis::Text() const {
  std::string text = headline;
  if (comm != 0 && !comm_ranks.empty()) {
    text += fmt::format(
        "\n  communicator {}: {} ({})", comm, Ranks(comm_ranks),
        comm_ranks.size() == 1 ? "1 member" : fmt::format("{} members", comm_ranks.size()));
  }
  for (const Party& party : parties) {
    text += fmt::format("\n  {}: {}", Ranks(party.ranks), party.text);
    if (!party.call_site.empty()) text += fmt::format("\n      at {}", party.call_site);
  }
  return text;
}

nlohmann::ordered_json Diagnosis::Json() const {
  nlohmann::ordered_json json;
  json["kind"] = kind;
  json["headline"] = headline;
  if (comm != 0) json["communicator"] = {{"number", comm}, {"ranks", comm_ranks}};
  if (call.has_value()) json["call"] = *call;
  json["parties"] = nlohmann::ordered_json::array();
  for (const Party& party : parties) {
    json["parties"].push_back(
        {{"ranks", party.ranks}, {"text", party.text}, {"call_site", party.call_site}});
    if (party.comm != 0) {
      json["parties"].back()["communicator"] = party.comm;
      json["parties"].back()["call"] = party.call;
    }
  }
  json["hint"] = hint;
  return json;
}

Diagnosis Diagnosis::FromJson(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  const auto text = [](const Json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [](const Json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  };
  const auto list = [](const Json& from, const char* key) {
    const auto found = from.find(key);
    return found != from.end() && found->is_array() ? *found : Json::array();
  };
  const auto ranks = [&](const Json& from) {
    std::vector<uint32_t> numbers;
    for (const Json& rank : list(from, "ranks")) {
      if (rank.is_number_unsigned()) numbers.push_back(rank.get<uint32_t>());
    }
    return numbers;
  };
  Diagnosis diagnosis;
  if (!json.is_object()) return diagnosis;
  diagnosis.kind = text(json, "kind");
  diagnosis.headline = text(json, "headline");
  diagnosis.hint = text(json, "hint");
  if (const auto comm = json.find("communicator"); comm != json.end() && comm->is_object()) {
    diagnosis.comm = static_cast<uint32_t>(number(*comm, "number"));
    diagnosis.comm_ranks = ranks(*comm);
  }
  if (json.contains("call")) diagnosis.call = number(json, "call");
  for (const Json& party : list(json, "parties")) {
    if (!party.is_object()) continue;
    diagnosis.parties.push_back({ranks(party), text(party, "text"), text(party, "call_site"),
                                 static_cast<uint32_t>(number(party, "communicator")),
                                 number(party, "call")});
  }
  return diagnosis;
}

std::string ProcessEnd::Text() const {
  std::string text = signal != 0      ? fmt::format("was killed by {} ({})",
                                               sigabbrev_np(signal) != nullptr
                                                        ? std::string("SIG") + sigabbrev_np(signal)
                                                        : std::string("signal"),
                                                    signal)
                     : exit_code >= 0 ? fmt::format("exited with code {}", exit_code)
                                      : std::string("is gone");
  if (!error.empty()) text += ": " + error;
  return text;
}

Diagnosis DiagnoseMismatch(const Wait& wait) {
  Diagnosis diagnosis = About(wait);
  diagnosis.kind = "mismatch";
  std::vector<Member> callers;
  std::copy_if(wait.members.begin(), wait.members.end(), std::back_inserter(callers),
               [](const Member& m) { return m.called; });
  diagnosis.parties = GroupByExpectation(callers, "calls", "call");
  // The same expectation at two places is not news: what differs is what was asked for.
  std::map<std::string, std::vector<uint32_t>> wanted;
  for (const Member& member : callers) wanted[member.expectation].push_back(member.rank);
  const auto largest = std::max_element(
      wanted.begin(), wanted.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<uint32_t> odd;
  for (const auto& [expectation, ranks] : wanted) {
    if (expectation != largest->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  const bool clear = largest->second.size() > odd.size();
  diagnosis.headline =
      clear ? fmt::format("{}: {} disagree{} with the other {}", wait.name, Ranks(odd),
                          odd.size() == 1 ? "s" : "", largest->second.size())
            : fmt::format("{}: {} disagree", wait.name, [&] {
                std::vector<uint32_t> all;
                for (const Member& member : callers) all.push_back(member.rank);
                return Ranks(all);
              }());
  diagnosis.hint =
      "on GPUs this call would hang or corrupt memory; make every rank pass the same arguments in "
      "the same order";
  return diagnosis;
}

Diagnosis DiagnoseBlocked(const std::vector<Wait>& waits, const std::vector<RankState>& ranks) {
  std::map<uint32_t, const RankState*> states;
  for (const RankState& state : ranks) states[state.rank] = &state;
  // Ranks that wait in something, and in what: first come, first named.
  std::map<uint32_t, std::vector<const Wait*>> waits_of;
  for (const Wait& wait : waits) {
    for (const Member& member : wait.members) {
      if (member.waiting) waits_of[member.rank].push_back(&wait);
    }
  }

  // A rank that waits in nothing and is awaited: it does not come.
  for (const Wait& wait : waits) {
    std::vector<uint32_t> absent;
    for (const uint32_t rank : Missing(wait)) {
      if (waits_of.count(rank) == 0) absent.push_back(rank);
    }
    if (absent.empty() || Waiting(wait).empty()) continue;
    Diagnosis diagnosis = About(wait);
    diagnosis.kind = "missing";
    diagnosis.headline = fmt::format("{}: {} did not come", wait.name, Ranks(absent));
    diagnosis.parties = GroupByExpectation(Waiting(wait), "waits in", "wait in");
    std::vector<RankState> absent_states;
    for (const uint32_t rank : absent) {
      RankState unknown;
      unknown.rank = rank;
      absent_states.push_back(states.count(rank) != 0 ? *states[rank] : unknown);
    }
    AddElsewhere(absent_states, &diagnosis.parties);
    diagnosis.hint = wait.kind == Wait::Kind::kCommunicator ? kOrderHint : kMissingHint;
    return diagnosis;
  }

  // Everybody waits for somebody who waits: follow the first missing rank of the first wait until
  // one repeats.
  Diagnosis diagnosis;
  diagnosis.kind = "cycle";
  if (waits_of.empty()) {
    diagnosis.headline =
        "no rank makes progress, and none waits in a communication that prism sees";
    return diagnosis;
  }
  struct Edge {
    uint32_t from, to;
    const Wait* wait;
  };
  std::vector<Edge> path;
  std::map<uint32_t, size_t> seen;
  uint32_t rank = waits_of.begin()->first;
  while (seen.count(rank) == 0) {
    const Wait* via = nullptr;
    uint32_t next = rank;
    for (const Wait* wait : waits_of[rank]) {
      const std::vector<uint32_t> missing = Missing(*wait);
      if (missing.empty()) continue;
      via = wait;
      next = missing.front();
      break;
    }
    if (via == nullptr) break;
    seen[rank] = path.size();
    path.push_back({rank, next, via});
    rank = next;
  }
  if (seen.count(rank) == 0) {
    diagnosis.headline = "no rank makes progress although every awaited rank has come";
    diagnosis.kind = "internal";
    return diagnosis;
  }
  path.erase(path.begin(), path.begin() + static_cast<ptrdiff_t>(seen[rank]));
  std::vector<uint32_t> cycle;
  std::set<uint32_t> comms;
  std::string where;
  for (const Edge& edge : path) {
    const Wait& wait = *edge.wait;
    comms.insert(wait.comm);
    const auto of = [&](uint32_t member, bool waiting) {
      return std::find_if(wait.members.begin(), wait.members.end(), [&](const Member& m) {
        return m.rank == member && m.waiting == waiting;
      });
    };
    const Member& self = *of(edge.from, true);
    // Those who wait beside it, at the same place for the same, are its party.
    Party party{{}, "", self.call_site, wait.comm, wait.call};
    for (const Member& member : Waiting(wait)) {
      if (member.expectation == self.expectation && member.call_site == self.call_site)
        party.ranks.push_back(member.rank);
    }
    cycle.insert(cycle.end(), party.ranks.begin(), party.ranks.end());
    const std::vector<uint32_t> missing = Missing(wait);
    const auto other = of(edge.to, false);
    const bool behind = missing.size() == 1 && other != wait.members.end() && other->called;
    party.text = fmt::format(
        "{} in {} ({}) for {}{}", party.ranks.size() == 1 ? "waits" : "wait", wait.name,
        self.expectation, Ranks(missing),
        behind ? fmt::format(", which has called it{} but is held by what it waits in itself",
                             At(other->call_site))
               : "");
    where += fmt::format("{}{} in {}", where.empty() ? ": " : ", ", Ranks(party.ranks), wait.name);
    diagnosis.parties.push_back(std::move(party));
  }
  constexpr size_t kShown = 4;  // of which the headline says where they wait
  diagnosis.headline = fmt::format("{} wait for each other in a cycle{}", Ranks(cycle),
                                   path.size() <= kShown ? where : "");
  if (comms.size() == 1) {
    diagnosis.comm = path.front().wait->comm;
    diagnosis.comm_ranks = path.front().wait->comm_ranks;
    diagnosis.call = path.front().wait->call;
  }
  const bool point_to_point = std::all_of(path.begin(), path.end(), [](const Edge& edge) {
    return edge.wait->kind == Wait::Kind::kPointToPoint;
  });
  diagnosis.hint =
      point_to_point
          ? "put the sends and receives of a step into one group "
            "(batch_isend_irecv), or let one side receive first"
          : "call the communicators in the same order on every rank, and leave no call out";
  return diagnosis;
}

Diagnosis DiagnoseEnd(const RankState& gone, const std::vector<Wait>& waits) {
  const Wait* concerned = nullptr;
  for (const Wait& wait : waits) {
    const std::vector<uint32_t> missing = Missing(wait);
    if (!Waiting(wait).empty() &&
        std::find(missing.begin(), missing.end(), gone.rank) != missing.end()) {
      concerned = &wait;
      break;
    }
  }
  Diagnosis diagnosis = concerned != nullptr ? About(*concerned) : Diagnosis{};
  const ProcessEnd& end = gone.end;
  diagnosis.kind = end.signal != 0 ? "died" : end.exit_code > 0 ? "raised" : "exited";
  diagnosis.headline = fmt::format("rank {} {}", gone.rank, end.Text());
  if (concerned != nullptr)
    diagnosis.headline += fmt::format(", while {} needs it", concerned->name);
  if (concerned != nullptr)
    diagnosis.parties = GroupByExpectation(Waiting(*concerned), "waits in", "wait in");
  diagnosis.parties.push_back(Elsewhere(gone));
  diagnosis.hint = end.signal == SIGKILL ? "SIGKILL without a cause of prism's is often the "
                                           "kernel's out-of-memory killer: see dmesg"
                   : end.failed() ? "the rank's whole output is in the job directory, under ranks/"
                                  : kMissingHint;
  return diagnosis;
}

Diagnosis DiagnoseIdle(const std::vector<RankState>& ranks) {
  std::vector<uint32_t> blocked, gone;
  int64_t idle_ns = INT64_MAX;
  for (const RankState& state : ranks) {
    if (state.life == RankState::Life::kGone) {
      gone.push_back(state.rank);
    } else if (state.life != RankState::Life::kNotStarted) {
      blocked.push_back(state.rank);
      idle_ns = std::min(idle_ns, state.idle_ns);
    }
  }
  Diagnosis diagnosis;
  diagnosis.kind = "blocked";
  diagnosis.headline =
      fmt::format("{} {} blocked outside of any communication for {}", Ranks(blocked),
                  blocked.size() == 1 ? "has been" : "have been", Seconds(idle_ns));
  if (!gone.empty())
    diagnosis.headline +=
        fmt::format(", and {} {} ended", Ranks(gone), gone.size() == 1 ? "has" : "have");
  AddElsewhere(ranks, &diagnosis.parties);
  diagnosis.hint =
      gone.empty() ? "nothing in the job can wake them: look for a lock, a queue or a key of the "
                     "store that nobody serves; --patience SECONDS waits longer, 0 for ever"
                   : "look for what the ranks that are left wait for and the others did not do "
                     "before they ended; --patience SECONDS waits longer, 0 for ever";
  return diagnosis;
}

std::string IdleLine(const std::vector<RankState>& ranks) {
  // A launcher may take its time when all is done.
  const auto is_done = [](const RankState& state) {
    return state.life == RankState::Life::kGone && state.end.exit_code == 0;
  };
  if (std::all_of(ranks.begin(), ranks.end(), is_done)) return "";
  std::string line;
  for (const bool gone : {false, true}) {
    std::map<std::string, std::vector<uint32_t>> groups;
    int64_t idle_ns = INT64_MAX;
    for (const RankState& state : ranks) {
      if (state.life == RankState::Life::kNotStarted ||
          (state.life == RankState::Life::kGone) != gone)
        continue;
      groups[gone ? state.end.Text() : IdleText(state)].push_back(state.rank);
      if (!gone) idle_ns = std::min(idle_ns, state.idle_ns);
    }
    for (const auto& [text, members] : groups)
      line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", Ranks(members), text);
    if (!gone && !groups.empty()) line += fmt::format(" (for {})", Seconds(idle_ns));
  }
  return line.empty() ? "" : "no rank works or communicates: " + line;
}

std::string StatusLine(const std::vector<Wait>& waits, const std::vector<RankState>& ranks) {
  // The wait that most ranks are in says most.
  const Wait* best = nullptr;
  size_t best_waiting = 0;
  for (const Wait& wait : waits) {
    const size_t waiting = Waiting(wait).size();
    if (waiting > best_waiting) {
      best = &wait;
      best_waiting = waiting;
    }
  }
  if (best == nullptr) return "";
  std::vector<uint32_t> waiting;
  for (const Member& member : Waiting(*best)) waiting.push_back(member.rank);
  const std::string site = Waiting(*best).front().call_site;
  std::string line =
      fmt::format("waiting for {}: {} wait{} in {}{}", Ranks(Missing(*best)), Ranks(waiting),
                  waiting.size() == 1 ? "s" : "", best->name, At(site));
  // What those do who are awaited, where that is known: they may wait in something else themselves.
  std::set<uint32_t> waiting_anywhere;
  for (const Wait& wait : waits) {
    for (const Member& member : Waiting(wait)) waiting_anywhere.insert(member.rank);
  }
  std::map<std::string, std::vector<uint32_t>> groups;
  const std::vector<uint32_t> missing = Missing(*best);
  for (const RankState& state : ranks) {
    if (state.idle_ns != 0 && waiting_anywhere.count(state.rank) == 0 &&
        std::find(missing.begin(), missing.end(), state.rank) != missing.end())
      groups[IdleText(state)].push_back(state.rank);
  }
  for (const auto& [text, members] : groups) line += fmt::format("; {}: {}", Ranks(members), text);
  return line;
}

}  // namespace prism::coordinator
