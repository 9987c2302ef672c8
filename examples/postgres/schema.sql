-- What the application has: a table. Nothing in it knows of Roskva.
CREATE TABLE documents (
    id bigint PRIMARY KEY,
    title text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO documents (id, title) VALUES (1, 'A plan'), (2, 'Another plan');

-- What capture needs: a role that may read the log, and nothing else; it needs no right on any table.
CREATE ROLE roskva LOGIN REPLICATION;

-- The tables that are captured. A role that owns them, or a superuser, may leave this to capture itself.
CREATE PUBLICATION roskva FOR TABLE documents;
