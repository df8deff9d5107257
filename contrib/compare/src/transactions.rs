//! Transactions of four reads and two writes by two threads, which move one unit between two of
//! four accounts. The total never changes, which is checked at the end. All candidates use a
//! directory, and leave syncing to the system or to a thread: none waits for the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fjall::{KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, Readable};
use ordna::{Map, OpenOptions};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::random::{Keys, Random};
use crate::{Failure, median};

/// Initial value of each account.
const FIRST: u64 = 1_000;
const THREADS: u64 = 2;
const ACCOUNTS: TableDefinition<u64, u64> = TableDefinition::new("accounts");

/// Accounts in a store.
trait Accounts: Sync {
    fn load(&self, entries: u64) -> Result<(), Failure>;
    /// Reads four accounts and moves a unit from the first to the second, if it has one. Returns
    /// how often the transaction was started.
    fn transfer(&self, accounts: [u64; 4]) -> Result<u64, Failure>;
    fn total(&self) -> Result<u64, Failure>;
}

impl Accounts for Map<u64, u64> {
    fn load(&self, entries: u64) -> Result<(), Failure> {
        let accounts: Vec<(u64, u64)> = (0..entries).map(|account| (account, FIRST)).collect();
        for some in accounts.chunks(1_000) {
            self.try_extend(some.iter().copied())?;
        }
        Ok(())
    }

    fn transfer(&self, accounts: [u64; 4]) -> Result<u64, Failure> {
        let mut tries = 0;
        self.transaction(|tx| {
            tries += 1;
            let [from, to, _, _] = accounts.map(|account| tx.get(account).unwrap_or(0));
            if from > 0 {
                tx.put(accounts[0], from - 1)?;
                tx.put(accounts[1], to + 1)?;
            }
            Ok(())
        })?;
        Ok(tries)
    }

    fn total(&self) -> Result<u64, Failure> {
        Ok(self.values().sum())
    }
}

impl Accounts for Database {
    fn load(&self, entries: u64) -> Result<(), Failure> {
        let write = self.begin_write()?;
        let mut table = write.open_table(ACCOUNTS)?;
        (0..entries).try_for_each(|account| table.insert(account, FIRST).map(drop))?;
        drop(table);
        Ok(write.commit()?)
    }

    fn transfer(&self, accounts: [u64; 4]) -> Result<u64, Failure> {
        let mut write = self.begin_write()?;
        write.set_durability(Durability::None)?;
        {
            let mut table = write.open_table(ACCOUNTS)?;
            let mut found = [0; 4];
            for (account, found) in accounts.iter().zip(&mut found) {
                *found = table.get(account)?.map_or(0, |value| value.value());
            }
            if found[0] > 0 {
                table.insert(accounts[0], found[0] - 1)?;
                table.insert(accounts[1], found[1] + 1)?;
            }
        }
        write.commit()?;
        Ok(1)
    }

    fn total(&self) -> Result<u64, Failure> {
        let read = self.begin_read()?;
        let table = read.open_table(ACCOUNTS)?;
        table.iter()?.try_fold(0, |sum, entry| Ok(sum + entry?.1.value()))
    }
}

/// A keyspace of fjall and its database.
struct Fjall(OptimisticTxDatabase, OptimisticTxKeyspace);

/// Decodes a number from eight bytes.
fn number(bytes: &[u8]) -> Result<u64, Failure> {
    Ok(u64::from_be_bytes(bytes.try_into()?))
}

impl Accounts for Fjall {
    fn load(&self, entries: u64) -> Result<(), Failure> {
        for account in 0..entries {
            self.1.insert(account.to_be_bytes(), FIRST.to_be_bytes())?;
        }
        Ok(())
    }

    fn transfer(&self, accounts: [u64; 4]) -> Result<u64, Failure> {
        for tries in 1.. {
            let mut write = self.0.write_tx()?;
            let mut found = [0; 4];
            for (account, found) in accounts.iter().zip(&mut found) {
                let value = write.get(&self.1, account.to_be_bytes())?;
                *found = value.map_or(Ok(0), |value| number(&value))?;
            }
            if found[0] > 0 {
                write.insert(&self.1, accounts[0].to_be_bytes(), (found[0] - 1).to_be_bytes());
                write.insert(&self.1, accounts[1].to_be_bytes(), (found[1] + 1).to_be_bytes());
            }
            if write.commit()?.is_ok() {
                return Ok(tries);
            }
        }
        unreachable!()
    }

    fn total(&self) -> Result<u64, Failure> {
        let read = self.0.read_tx();
        read.iter(&self.1).try_fold(0, |sum, entry| Ok(sum + number(&entry.value()?)?))
    }
}

/// Returns the transactions per second, and how many of 100 had to be started again.
fn measure(
    accounts: &dyn Accounts,
    keys: &Keys,
    entries: u64,
    time: Duration,
) -> Result<(f64, f64), Failure> {
    let ended = AtomicBool::new(false);
    let began = Instant::now();
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let ended = &ended;
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let (mut done, mut tries) = (0_u64, 0_u64);
                    while !ended.load(Ordering::Relaxed) {
                        let mut chosen = [0; 4];
                        for at in 0..4 {
                            chosen[at] = keys.draw(&mut random);
                            while chosen[..at].contains(&chosen[at]) {
                                chosen[at] = (chosen[at] + 1) % entries;
                            }
                        }
                        tries += accounts.transfer(chosen)?;
                        done += 1;
                    }
                    Ok::<_, Failure>((done, tries))
                })
            })
            .collect();
        thread::sleep(time);
        ended.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let took = began.elapsed().as_secs_f64();
    let total = accounts.total()?;
    if total != entries * FIRST {
        return Err(format!("the accounts have {total}, not {}", entries * FIRST).into());
    }
    let done: u64 = counts.iter().map(|(done, _)| done).sum();
    let tries: u64 = counts.iter().map(|(_, tries)| tries).sum();
    Ok((done as f64 / took, 100.0 * (tries - done) as f64 / done.max(1) as f64))
}

/// Opens a new store of the candidate in `dir`.
fn open(name: &str, dir: &Path) -> Result<Arc<dyn Accounts + Send>, Failure> {
    std::fs::create_dir_all(dir)?;
    Ok(match name {
        "ordna" => Arc::new(Map::<u64, u64>::open(dir.join("ordna"), OpenOptions::new())?),
        "redb" => Arc::new(Database::create(dir.join("redb"))?),
        _ => {
            let database = OptimisticTxDatabase::builder(dir.join("fjall")).open()?;
            let accounts = database.keyspace("accounts", KeyspaceCreateOptions::default)?;
            Arc::new(Fjall(database, accounts))
        }
    })
}

pub fn run(seconds: u64, entries: u64, rounds: u64) -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("ordna-compare-{}", std::process::id()));
    let candidates = ["ordna", "redb", "fjall"];
    let drawn = [("uniform", Keys::Uniform(entries)), ("Zipf .99", Keys::zipf(entries))];
    let mut figures = vec![[const { (Vec::new(), Vec::new()) }; 2]; candidates.len()];
    for round in 0..rounds {
        for (name, figures) in candidates.iter().zip(&mut figures) {
            let accounts = open(name, &dir)?;
            accounts.load(entries)?;
            for ((keys_name, keys), figures) in drawn.iter().zip(figures) {
                let (rate, again) =
                    measure(&*accounts, keys, entries, Duration::from_secs(seconds))?;
                eprintln!("round {round}: {name}, {keys_name}: {rate:.0}/s, {again:.2} % again");
                figures.0.push(rate);
                figures.1.push(again);
            }
            drop(accounts);
            std::fs::remove_dir_all(&dir)?;
        }
    }
    println!(
        "{THREADS} threads, {entries} accounts, {rounds} rounds of {seconds} s; totals are right"
    );
    println!("| | uniform, per second | started again | Zipf .99, per second | started again |");
    println!("|---|---|---|---|---|");
    for (name, [uniform, zipf]) in candidates.iter().zip(figures) {
        let (uniform, again) = (median(uniform.0), median(uniform.1));
        let (zipf, zipf_again) = (median(zipf.0), median(zipf.1));
        println!("| {name} | {uniform:.0} | {again:.2} % | {zipf:.0} | {zipf_again:.2} % |");
    }
    Ok(())
}
