/** What a look at the tables has changed, and what is wrong with them now. */
export interface TablesReport {
  /** Tasks that are completed now because of rows in tables. */
  adopted: number;
  /** Rows that tables had lost. */
  restored: number;
  /** New rows. */
  appended: number;
  problems: string[];
}
