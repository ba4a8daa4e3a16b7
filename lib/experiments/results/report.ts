/** What a look at the tables has changed, and what is wrong with them now. */
export interface TablesReport {
  /** Tasks that are completed now because of rows in tables. */
  adopted: number;
  /** Rows that tables had lost. */
  restored: number;
  /** New rows. */
  appended: number;
  problems: string[];
  /** What keeps tables from being read: which of their tasks are completed isn't known. */
  unreadable: string[];
  /** Rows that are still to be written. */
  missing: number;
  /** All tables, as people are shown them. */
  tables: string[];
}
