//! The reads that maps and their snapshots share.

/// Implements the reads of a type with the field `lead`, the bytes with which the map's keys start,
/// and the named field, a store or snapshot of the given type.
macro_rules! reads {
    ($source:ident: $type:ty) => {
        #[inline]
        fn source(&self) -> &$type {
            &self.$source
        }

        /// Calls `f` with the encoded form of a key.
        #[inline]
        pub(super) fn with_key<R>(&self, key: impl Like<K>, f: impl FnOnce(&[u8]) -> R) -> R {
            with_scratch(|buffer| {
                buffer.extend_from_slice(&self.lead);
                key.encode(buffer);
                f(buffer)
            })
        }

        fn iter_over(&self, byte_bounds: ByteBounds) -> Iter<K, V, M, &$type> {
            Iter::new(self.source(), byte_bounds, self.lead.len())
        }

        /// Returns the value of `key`. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!((ages.get("ann"), ages.get("eve")), (Some(31), None));
        /// ```
        pub fn get(&self, key: impl Like<K>) -> M::Read<Option<V>> {
            let value = self.with_key(key, |key| self.source().get_with(key, V::load));
            M::read(value.transpose().map_err(Error::from))
        }

        /// Calls `read` with the value of `key`, borrowed without a copy: a `&str` of a `String`, a
        /// slice of a vector of bytes. `read` must be short and must not write to the map. O(log
        /// n).
        ///
        /// ```
        /// let names: ordna::Map<u64, String> = [(1, "Lund")].into_iter().collect();
        /// assert_eq!(names.get_with(1, |name| name.len()), Some(4));
        /// ```
        pub fn get_with<R>(
            &self,
            key: impl Like<K>,
            read: impl FnOnce(&V::Ref) -> R,
        ) -> M::Read<Option<R>> {
            let lend = |value: &[u8]| V::lend(value, read);
            let value = self.with_key(key, |key| self.source().get_with(key, lend));
            M::read(value.transpose().map_err(Error::from))
        }

        /// Returns the value of every key, in the order of `keys`; their memory accesses overlap.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.get_many(&["bob", "eve"]), [Some(27), None]);
        /// ```
        pub fn get_many<Q: Like<K>>(&self, keys: &[Q]) -> M::Read<Vec<Option<V>>> {
            let keys: Vec<Vec<u8>> =
                keys.iter().map(|key| self.with_key(key, <[u8]>::to_vec)).collect();
            let mut values = Vec::with_capacity(keys.len());
            self.source()
                .get_many_with(&keys, |_, value| values.push(value.map(V::load).transpose()));
            M::read(values.into_iter().collect::<Result<_, _>>().map_err(Error::from))
        }

        /// Returns whether `key` is present. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert!(ages.contains_key("ann") && !ages.contains_key("eve"));
        /// ```
        pub fn contains_key(&self, key: impl Like<K>) -> bool {
            self.with_key(key, |key| self.source().contains_key(key))
        }

        /// Returns all entries, in order, from both ends.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.iter().map(|(_, age)| age).max(), Some(31));
        /// ```
        pub fn iter(&self) -> Iter<K, V, M, &$type> {
            self.iter_over(ByteBounds::with_lead(&self.lead))
        }

        /// Returns all keys, in order, from both ends. Also reads the values.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.keys().collect::<Vec<_>>(), ["ann", "bob"]);
        /// ```
        pub fn keys(&self) -> Keys<K, V, M, &$type> {
            Keys(self.iter())
        }

        /// Returns all values in the order of their keys, from both ends.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.values().sum::<u32>(), 58);
        /// ```
        pub fn values(&self) -> Values<K, V, M, &$type> {
            Values(self.iter())
        }

        /// Returns the entries of a range, in order, from both ends. Crossed bounds hold no
        /// entries.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.range("b"..).next(), Some(("bob".to_owned(), 27)));
        /// ```
        pub fn range(&self, range: impl MapRange<K>) -> Iter<K, V, M, &$type> {
            self.iter_over(range.byte_bounds(&self.lead))
        }

        /// Returns the entries whose keys begin with `prefix`: the first elements of a tuple or
        /// struct, or the beginning of a string. In order, from both ends.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.prefix("b").collect::<Vec<_>>(), [("bob".to_owned(), 27)]);
        /// ```
        pub fn prefix(&self, prefix: impl Prefix<K>) -> Iter<K, V, M, &$type> {
            let mut start = self.lead.to_vec();
            prefix.encode_prefix(&mut start);
            self.iter_over(ByteBounds::with_lead(&start))
        }

        /// Returns the entries whose keys begin with a prefix within a range: with the first
        /// elements of a tuple or struct.
        ///
        /// ```
        /// let sales: ordna::Map<(String, u32, u64), u64> = ordna::Map::new();
        /// sales.insert(("SE", 2024, 1), 10)?;
        /// sales.insert(("SE", 2025, 1), 20)?;
        /// sales.insert(("SE", 2026, 1), 30)?;
        /// let two_years = sales.range_prefix(("SE", 2024)..("SE", 2026));
        /// assert_eq!(two_years.map(|(_, amount)| amount).sum::<u64>(), 30);
        /// # Ok::<(), ordna::Error>(())
        /// ```
        pub fn range_prefix(&self, range: impl PrefixRange<K>) -> Iter<K, V, M, &$type> {
            self.iter_over(range.byte_bounds(&self.lead))
        }

        /// Returns a cursor before the first entry within a lower bound.
        ///
        /// ```
        /// use std::ops::Bound;
        ///
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// let mut cursor = ages.lower_bound(Bound::Included("b"));
        /// assert_eq!(cursor.next(), Some(("bob".to_owned(), 27)));
        /// ```
        pub fn lower_bound<Q: Like<K>>(&self, bound: Bound<Q>) -> Cursor<K, V, M, &$type> {
            let ByteBounds(after, _) = from_key(&self.lead, bound.as_ref());
            Cursor::new(self.source(), &self.lead, after)
        }

        /// Returns a cursor after the last entry within an upper bound.
        ///
        /// ```
        /// use std::ops::Bound;
        ///
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// let mut cursor = ages.upper_bound(Bound::Excluded("bob"));
        /// assert_eq!(cursor.prev(), Some(("ann".to_owned(), 31)));
        /// ```
        pub fn upper_bound<Q: Like<K>>(&self, bound: Bound<Q>) -> Cursor<K, V, M, &$type> {
            let before = match &bound {
                Bound::Unbounded => Bound::Unbounded,
                bound => to_key(&self.lead, bound.as_ref()).1,
            };
            Cursor::new_after(self.source(), &self.lead, before)
        }

        /// Returns the entry with the smallest key. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.first_key_value(), Some(("ann".to_owned(), 31)));
        /// ```
        pub fn first_key_value(&self) -> M::Read<Option<(K, V)>> {
            self.nearest(&ByteBounds::with_lead(&self.lead), Direction::Ascending)
        }

        /// Returns the entry with the largest key. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.last_key_value(), Some(("bob".to_owned(), 27)));
        /// ```
        pub fn last_key_value(&self) -> M::Read<Option<(K, V)>> {
            self.nearest(&ByteBounds::with_lead(&self.lead), Direction::Descending)
        }

        /// Same as [`first_key_value`](Self::first_key_value).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.first(), ages.first_key_value());
        /// ```
        pub fn first(&self) -> M::Read<Option<(K, V)>> {
            self.first_key_value()
        }

        /// Same as [`last_key_value`](Self::last_key_value).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.last(), ages.last_key_value());
        /// ```
        pub fn last(&self) -> M::Read<Option<(K, V)>> {
            self.last_key_value()
        }

        /// Returns the entry with the largest key that is at most `key`. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.floor("b"), Some(("ann".to_owned(), 31)));
        /// ```
        pub fn floor(&self, key: impl Like<K>) -> M::Read<Option<(K, V)>> {
            self.nearest(&to_key(&self.lead, Bound::Included(&key)), Direction::Descending)
        }

        /// Returns the entry with the smallest key that is at least `key`. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.ceiling("b"), Some(("bob".to_owned(), 27)));
        /// ```
        pub fn ceiling(&self, key: impl Like<K>) -> M::Read<Option<(K, V)>> {
            self.nearest(&from_key(&self.lead, Bound::Included(&key)), Direction::Ascending)
        }

        fn nearest(
            &self,
            byte_bounds: &ByteBounds,
            direction: Direction,
        ) -> M::Read<Option<(K, V)>> {
            let (mut found, (lower, upper)) = (None, byte_bounds.as_ref());
            self.source().visit(lower, upper, direction, |key, value| {
                let decoded = key_of(key, self.lead.len());
                found = Some(decoded.and_then(|key| Ok((key, V::load(value)?))));
                ControlFlow::Break(())
            });
            M::read(found.transpose())
        }

        /// Calls `read` with each entry of a range, in order, until it breaks. Values are borrowed
        /// without a copy. This is the fastest scan. `read` must be short and must not write to the
        /// map. O(log n), then O(1) per entry.
        ///
        /// ```
        /// use std::ops::ControlFlow;
        ///
        /// let names: ordna::Map<u64, String> = [(1, "Lund"), (2, "Malmö")].into_iter().collect();
        /// let mut letters = 0;
        /// names.for_each(.., |_, name| {
        ///     letters += name.chars().count();
        ///     ControlFlow::Continue(())
        /// });
        /// assert_eq!(letters, 9);
        /// ```
        pub fn for_each(
            &self,
            range: impl MapRange<K>,
            mut read: impl FnMut(K, &V::Ref) -> ControlFlow<()>,
        ) -> M::Read<()> {
            let (byte_bounds, mut failed) = (range.byte_bounds(&self.lead), Ok(()));
            let (lower, upper) = byte_bounds.as_ref();
            self.source().visit(lower, upper, Direction::Ascending, |key, value| {
                let lent = key_of(key, self.lead.len())
                    .and_then(|key| Ok(V::lend(value, |value| read(key, value))?));
                lent.unwrap_or_else(|error| {
                    failed = Err(error);
                    ControlFlow::Break(())
                })
            });
            M::read(failed)
        }

        /// Returns the number of keys in a range. O(log n + l), where l is the number of leaves in
        /// the range, of about 40 entries each, that hold entries with deadlines or have changed
        /// since the last count; at a snapshot and in a transaction, l is the number of all leaves
        /// in the range.
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!((ages.count(..), ages.count("b"..)), (2, 1));
        /// ```
        pub fn count(&self, range: impl MapRange<K>) -> usize {
            self.count_within(&range.byte_bounds(&self.lead))
        }

        /// Returns the number of keys below `key`: its position, if it is present. Same cost as
        /// [`count`](Self::count).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!((ages.rank("ann"), ages.rank("bob")), (0, 1));
        /// ```
        pub fn rank(&self, key: impl Like<K>) -> usize {
            self.count_within(&to_key(&self.lead, Bound::Excluded(&key)))
        }

        /// Returns the entry at a position, counted from 0. Same cost as [`count`](Self::count).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
        /// assert_eq!(ages.select(1), Some(("bob".to_owned(), 27)));
        /// ```
        pub fn select(&self, position: usize) -> M::Read<Option<(K, V)>> {
            let before = match self.lead.is_empty() {
                true => 0,
                false => self.source().rank(&self.lead),
            };
            let found = self.source().select_with(before.saturating_add(position), |key, value| {
                // Entries of other maps follow.
                key.starts_with(&self.lead).then(|| {
                    key_of(key, self.lead.len()).and_then(|key| Ok((key, V::load(value)?)))
                })
            });
            M::read(found.flatten().transpose())
        }

        fn count_within(&self, byte_bounds: &ByteBounds) -> usize {
            let (lower, upper) = byte_bounds.as_ref();
            self.source().count(lower, upper)
        }

        /// Returns whether there are no entries. O(log n).
        ///
        /// ```
        /// let ages: ordna::Map<String, u32> = ordna::Map::new();
        /// assert!(ages.is_empty());
        /// ```
        pub fn is_empty(&self) -> bool {
            let (byte_bounds, mut empty) = (ByteBounds::with_lead(&self.lead), true);
            let (lower, upper) = byte_bounds.as_ref();
            self.source().visit(lower, upper, Direction::Ascending, |_, _| {
                empty = false;
                ControlFlow::Break(())
            });
            empty
        }
    };
}
pub(super) use reads;
