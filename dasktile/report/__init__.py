"""What people see of a plan: tables, pictures, timelines."""
