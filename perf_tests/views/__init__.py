"""What people look at: screens, tables, the report page, the write-up; never imports torch."""
