// Loads places in batches, and asks a snapshot for a prefix while the store changes.
//
//     gzip -dc data/places.tsv.gz | places_cpp SE:Upp
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ordna.hpp"

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "usage: gzip -dc places.tsv.gz | places_cpp PREFIX\n";
    return 2;
  }
  ordna::Store store;
  ordna::Batch batch;
  std::string line;
  std::getline(std::cin, line);
  while (std::getline(std::cin, line)) {
    std::istringstream parts(line);
    std::vector<std::string> fields;
    for (std::string field; std::getline(parts, field, '\t');) fields.push_back(field);
    if (fields.size() < 5) continue;
    batch.put(fields[1] + ":" + fields[3] + ":" + fields[0], fields[4]);
    if (batch.size() == 1000) store.write(batch);
  }
  store.write(batch);

  ordna::Snapshot before = store.snapshot();
  store.remove_range(ordna::Range::prefix("SE:"));
  int shown = 0;
  for (const auto& [key, population] : before.prefix(argv[1])) {
    if (shown++ == 10) break;
    std::cout << key << '\t' << population << '\n';
  }
  std::cout << before.size() << " places, then " << store.size() << '\n';
} catch (const ordna::Error& error) {
  std::cerr << "places: " << error.what() << '\n';
  return 1;
}
